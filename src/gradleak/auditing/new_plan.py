"""A first plan and a script of a model and data of one's own, made by looking at both; what is written has been read again."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradleak.attacks import SpanSearch
from gradleak.auditing.data_table import DataTable, data_tables
from gradleak.auditing.default_plan import DENSE_BYTES, QUICK_SIZE, fits_gauss_newton, least_multiplier
from gradleak.auditing.plan import Plan
from gradleak.auditing.plan_file import build_plan
from gradleak.auditing.plan_reader import PlanReader
from gradleak.auditing.presets import DEFENSES, EFFORTS, Effort, Preset
from gradleak.auditing.run import preflight
from gradleak.core import Batch, HonestButCurious, Objective, Release
from gradleak.core.token_tables import arguments
from gradleak.protocols import FedSGD
from gradleak.results import GradleakError, InputError
from gradleak.risk import ReconstructionProbability


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Facts about a first plan that model and data do not show.

    Attributes:
        preset: how much is tried.
        name: of the audit; by default that of the model's factory.
        arguments: of the model's factory.
        weights: safetensors file with the model's weights, or None for those that the factory makes.
        loss: by name or `module:function`; None to go by the outputs and the targets.
        mode: "eval" or "train".
        batch_size: examples of one update.
        target: column or array of the targets; by default the last column, or `y`.
        inputs: array of the inputs; by default `x`.
        size: height and width that the images of a folder are brought to.
        vocabulary: file of the model's words, for a file of sentences; None to count words.
        merges: file of a byte-level BPE, beside its vocabulary.
        public_text: file whose words are counted; None to take the first half of the sentences for public.
    """

    preset: Preset = Preset.STANDARD
    name: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    loss: str | None = None
    mode: str = "eval"
    batch_size: int = 1
    target: str | None = None
    inputs: str | None = None
    size: tuple[int, int] | None = None
    vocabulary: str | None = None
    merges: str | None = None
    public_text: str | None = None


@dataclass(frozen=True, kw_only=True)
class NewPlan:
    """A first plan.

    Attributes:
        text: of the plan file.
        script: Python that audits the first update by itself.
        plan: that the text makes; it passed the checks before a run.
        said: what was assumed and should be known, "" for nothing.
    """

    text: str
    script: str
    plan: Plan
    said: str = ""


def new_plan(model: str, data: str, wishes: Wishes | None = None) -> NewPlan:
    """The plan of a model and data, after a look at both: shapes, targets, outputs, ranges.

    Args:
        model: `module:factory`, or a name of `gradleak list`; imported and called.
        data: a CSV, npz, safetensors or text file, a folder with one folder of images a class, `module:function`, or a name of
            `gradleak list`; a path is taken from the folder where the command runs.
        wishes: what they do not show.

    Raises:
        GradleakError: in one line, where model and data cannot be read or do not fit together.

    Cost:
        A few gradients.
    """
    wish = Wishes() if wishes is None else wishes
    if not wish.batch_size >= 1:
        raise InputError(f"batch_size: expected at least 1, got {wish.batch_size}")
    effort = EFFORTS[wish.preset]
    reader = PlanReader(folder=Path(), seed=0)
    weights = {} if wish.weights is None else {"weights": wish.weights}
    table = {"use": model, **wish.arguments, **weights}
    module = reader.module(table)
    found, batch, loss = _fitting(module, data, reader, wish, table)
    objective = Objective.from_module(module, loss=reader.loss({"loss": loss}), mode=wish.mode)
    name = wish.name or re.sub(r"\W+", " ", model.rpartition(":")[2]).strip() or "audit"
    parts = Parts(
        name=name, model=table, data=found, loss=loss, wish=wish, effort=effort, objective=objective, batch=batch
    )
    text = "\n".join(parts.lines()) + "\n"
    plan = build_plan(tomllib.loads(text), folder=Path())
    preflight(plan)
    return NewPlan(text=text, script=parts.script(), plan=plan, said=found.said)


def _fitting(
    module: nn.Module, data: str, reader: PlanReader, wish: Wishes, model: Mapping[str, Any]
) -> tuple[DataTable, Batch, str]:
    """The first reading of the data that the model takes, a batch of it, and the loss.

    Raises:
        InputError: where the model takes none.
    """
    refused = hint = ""
    # A model or a loss that no data would help is refused as such.
    dtype = Objective.from_module(module, loss=reader.loss({"loss": wish.loss or "mse"}), mode=wish.mode).dtype
    parameters = inspect.signature(reader.named(model, "models", "model")).parameters
    values = {name: model.get(name, one.default) for name, one in parameters.items()}
    arguments = {name: value for name, value in values.items() if type(value) is int}

    def made(**changed: Any) -> nn.Module:
        return reader.module({**model, **changed})

    count = EFFORTS[wish.preset].updates * wish.batch_size
    looked_up = {one.num_embeddings for one in module.modules() if isinstance(one, nn.Embedding)}
    ways = data_tables(
        data,
        count=count,
        target=wish.target,
        inputs=wish.inputs,
        size=wish.size,
        vocabularies=sorted(looked_up, reverse=True),
        words=None if wish.vocabulary is None else (wish.vocabulary, wish.merges),
        public_text=wish.public_text,
    )
    for found in ways:
        batches, _ = reader.batches({**found.table, "batch_size": wish.batch_size})
        batch = batches[0]
        try:
            loss = wish.loss or _loss_for(module, batch.to(dtype))
            objective = Objective.from_module(module, loss=reader.loss({"loss": loss}), mode=wish.mode)
            objective.check(batch.to(dtype))
            outputs = _width(module, "out")
            if loss in ("cross_entropy", "nll") and outputs is not None and outputs[1] < found.classes:
                raise InputError(f"targets: expected at most {outputs[1]} classes, got {found.classes}")
        except GradleakError as refusal:
            if not refused:
                refused, hint = str(refusal), _hint(made, arguments, found, batch)
            continue
        if len(batches) * wish.batch_size < count:
            found = replace(found, table={**found.table, "count": len(batches) * wish.batch_size})
        return found, batch, loss
    raise InputError(
        f"the model does not take what {data} gives ({refused}); {hint}write a function without arguments that returns a "
        "gradleak.Batch as your training makes it, and name it module:function in place of the file"
    )


def _hint(made: Callable[..., nn.Module], arguments: Mapping[str, Any], found: DataTable, batch: Batch) -> str:
    """The difference between data and the first or last layer, and the argument that helps; "" where there is no difference.

    Args:
        made: makes the model with some arguments changed.
        arguments: whole numbers among those of the factory, by name.
        found: the data.
        batch: of them.
    """
    inputs, module = batch.inputs, made()
    taken, outputs = _width(module, "in"), _width(module, "out")
    if taken is not None and inputs.is_floating_point():
        have = inputs.shape[1] if taken[0] == "channels" else inputs[0].numel()
        if taken[1] != have:
            parts = ", ".join(f"{name} {width}" for name, width in found.widths.items())
            said = f"its first layer takes {taken[1]} {taken[0]}, and the data have {have}" + (
                f" ({parts})" if parts else ""
            )
            return f"{said}; {_setting(made, arguments, 'in', (taken[0], have))}"
    if outputs is not None and outputs[1] < found.classes:
        said = f"its last layer has {outputs[1]} outputs, and the targets are {found.classes} classes"
        return f"{said}; {_setting(made, arguments, 'out', (outputs[0], found.classes))}"
    return ""


def _width(module: nn.Module, end: str) -> tuple[str, int] | None:
    """The noun of what the first or the last layer with a width counts there, and the number."""
    layers = [*module.modules()]
    for layer in layers if end == "in" else reversed(layers):
        for kind in ("features", "channels"):
            width = getattr(layer, f"{end}_{kind}", None)
            if isinstance(width, int):
                return kind, width
    return None


def _setting(made: Callable[..., nn.Module], arguments: Mapping[str, Any], end: str, wanted: tuple[str, int]) -> str:
    """The flag that gives a layer a width, found by trying the arguments one by one; "" where none does."""
    for name in arguments:
        try:
            width = _width(made(**{name: wanted[1]}), end)
        except GradleakError:
            continue
        if width == wanted:
            return f"write --set {name}={wanted[1]}, or "
    return ""


def _loss_for(module: nn.Module, batch: Batch) -> str:
    """The name of the loss that outputs and targets speak of.

    Raises:
        InputError: where the model does not take the inputs, or none is plain from the shapes.
    """
    given, named = arguments(module, batch.inputs)
    was = module.training
    module.eval()
    try:
        with torch.no_grad():
            outputs = module(*given, **named)
    except Exception as error:  # a user's own model may raise anything
        said = " ".join(str(error).split())[:200]
        raise InputError(f"inputs of shape {tuple(batch.inputs.shape)} raise {type(error).__name__}: {said}") from error
    finally:
        module.train(was)
    outputs = getattr(outputs, "logits", outputs)
    targets = batch.targets
    if not isinstance(outputs, torch.Tensor):
        raise InputError(f"loss: the model returns a {type(outputs).__name__}; name a loss of your own (--loss)")
    whole = not targets.is_floating_point()
    if whole and outputs.dim() == 3 and targets.shape == outputs.shape[:2] and not batch.inputs.is_floating_point():
        counted = targets != -100
        return "causal_lm" if torch.equal(targets[counted], batch.inputs[counted]) else "masked_lm"
    if whole and outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1 and int(targets.max()) < outputs.shape[1]:
        sums = outputs.double().exp().sum(dim=1)
        return "nll" if bool(torch.allclose(sums, torch.ones_like(sums), atol=1e-4)) else "cross_entropy"
    if not whole and outputs.shape == targets.shape:
        binary = bool(((targets == 0) | (targets == 1)).all())
        return "bce_with_logits" if binary else "mse"
    raise InputError(
        f"loss: outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(targets.shape)} ({targets.dtype}) fit no "
        "loss by themselves; name it (--loss)"
    )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that a first plan says."""

    name: str
    model: Mapping[str, Any]
    data: DataTable
    loss: str
    wish: Wishes
    effort: Effort
    objective: Objective
    batch: Batch

    @property
    def attacks(self) -> dict[str, list[str]]:
        """The tables of the attacks by name, line by line."""
        if not self.batch.inputs.is_floating_point():
            tables = {
                "token_rows": ['use = "TokenRows"    # words off the table of words, their order off that of places']
            }
            known = HonestButCurious().disclose(self.objective, Release(FedSGD()), self.batch)
            if SpanSearch().refusal(known) is None:
                tables["span_search"] = ['use = "SpanSearch"   # whole sentences of a batch, while its tokens are few']
            return tables
        found: dict[str, list[str]] = {}
        few = self.effort.unknowns is None or self.batch.inputs.numel() <= self.effort.unknowns
        if few and fits_gauss_newton(self.objective, self.batch):
            found["gauss_newton"] = [
                'use = "GaussNewton"    # the strongest where there are few unknowns',
                f"max_steps = {self.effort.steps}",
                f"starts = {self.effort.restarts}             # further ones only where the first ends above round-off",
            ]
        found["inverting_gradients"] = [
            'use = "InvertingGradients"',
            f"iterations = {self.effort.iterations}",
            f"restarts = {self.effort.restarts}",
        ]
        return found

    def lines(self) -> Iterator[str]:
        """The lines of the plan file."""
        settings = {key: value for key, value in self.model.items() if key != "use"}
        yield "# Written by `gradleak init` after a look at the model and the data. Every table is a constructor call: `use`"
        yield "# names the class or function, the other keys are its arguments; `gradleak explain NAME` has them all."
        yield "# Run it in the folder that model and data are taken from:"
        yield "#"
        yield "#     gradleak check THIS_FILE                # what it costs; nothing is attacked"
        yield "#     gradleak audit THIS_FILE --out runs/1   # an interrupted run goes on with the same command"
        yield ""
        yield f"name = {_toml(self.name)}"
        yield "seed = 0               # all randomness derives from it"
        yield "pictures = false       # true writes private examples and what was rebuilt of them beside the record"
        yield ""
        yield f"[model]                # {self.objective.size:,} parameters are shared"
        yield f"use = {_toml(self.model['use'])}"
        yield from (f"{key} = {_toml(value)}" for key, value in settings.items())
        if self.wish.weights is None:
            yield '# weights = "round_12.safetensors"   # of the round to audit; else those that the factory makes'
        yield ""
        yield f"[data]                 # {self.data.about}"
        for key, value in self.data.table.items():
            if not isinstance(value, Mapping):
                yield f"{key} = {_toml(value)}" + (f"   # {said}" if (said := self.data.comments.get(key)) else "")
        yield f"batch_size = {self.wish.batch_size}         # examples of one update, as your clients send it"
        for key, value in self.data.table.items():
            if isinstance(value, Mapping):
                yield ""
                remarks = self.data.comments.get(key, "").split("\n")
                yield from (f"# {line}" for part in remarks for line in textwrap.wrap(part, 116))
                yield f"[data.{key}]"
                yield from (f"{_key(name)} = {_toml(inside)}" for name, inside in value.items())
        yield ""
        yield "[objective]"
        yield f"loss = {_toml(self.loss)}"
        yield f"mode = {_toml(self.wish.mode)}          # as the client runs the model: eval or train"
        yield ""
        yield "[threat]               # what the server is told; the report says so"
        yield 'use = "HonestButCurious"'
        yield "# targets = true       # where it knows the labels, too"
        yield ""
        for name, table in self.attacks.items():
            yield from (f"[attacks.{name}]", *table, "")
        yield from self._measures()
        yield from self._scenarios()

    def _measures(self) -> Iterator[str]:
        dense = 8 * self.objective.size * self.batch.inputs.numel() <= DENSE_BYTES
        if self.batch.inputs.is_floating_point():
            kind = "InversionInfluence" if dense else "InversionInfluenceLowerBound"
            why = "error that the noise of a release causes" if dense else "a lower bound of it: this model is large"
            yield from ("[measures.influence]", f'use = "{kind}"   # {why}', 'unit = "pixel_rmse"', "")
        chance = self._of_sentences
        many, of = 1000, "an example for one of a thousand"
        if chance is not None:
            many, of = chance.candidates or 0, f"a sentence for one of {chance.candidates} that agree at no place"
            if self.objective.size <= QUICK_SIZE:
                yield from ("[measures.token]       # the least Gaussian noise that hides a word, its neighbors told",)
                yield from ('use = "TokenError"', "most_places = 3", "most_candidates = 12", "")
        yield from (
            "[measures.chance]      # of any attacker, by differential privacy: what can make a release *bounded*",
            'use = "ReconstructionProbability"',
            f"candidates = {many}      # the prior: who attacks holds {of}",
            "rounds = 1             # releases that hold the same example",
        )
        if chance is not None:
            yield "within = 0.5           # of the words: the verdict's threshold"
        yield ""

    @property
    def _of_sentences(self) -> ReconstructionProbability | None:
        """The bound on every attacker on sentences; None for other data."""
        vocabulary = None if self.batch.domain is None else self.batch.domain.vocabulary
        if vocabulary is None:
            return None
        return ReconstructionProbability(candidates=min(1000, vocabulary.size // 2), within=0.5)

    def _scenarios(self) -> Iterator[str]:
        everything = ", ".join(f'{name} = "all"' for name in self.attacks)
        chance, multiplier, told = self._of_sentences, 1.1, ""
        if chance is not None:
            least = least_multiplier(self.objective, self.batch, chance)
            told = f"   # no noise makes it *bounded*: {chance.candidates} candidates are guessed too often"
            if least is not None:
                multiplier, told = (
                    least,
                    "   # the smallest noise_multiplier that makes it *bounded*, by [measures.chance]",
                )
        yield from (
            "[[scenarios]]",
            'name = "undefended"',
            f"attacks = {{ {everything} }}",
        )
        for name in self.effort.defenses:
            defense = DEFENSES[name]
            yield from (
                "",
                "[[scenarios]]",
                f"name = {_toml(name)}{told if '%' in defense else ''}",
                f"adversaries = {self.effort.adversaries}   # adaptive: knows the defense; static: does not",
                f"defenses = [{defense % (multiplier, self.wish.batch_size) if '%' in defense else defense}]",
                f"attacks = {{ {everything} }}",
            )

    def script(self) -> str:
        """Ten lines of Python that audit the first update."""
        use, loss = self.model["use"], self.loss
        module, _, factory = use.rpartition(":") if ":" in use else ("gradleak.models", "", use)
        given = {key: value for key, value in self.model.items() if key not in ("use", "weights")}
        loader = self.data.table["use"]
        home, _, function = loader.rpartition(":") if ":" in loader else ("gradleak.datasets", "", loader)
        own = {key: value for key, value in self.data.table.items() if key not in ("use", "domain")}
        own |= {"count": self.wish.batch_size} if "count" in own else {}
        imports = sorted({f"from {module} import {factory}", f"from {home} import {function}"})
        lines = ['"""One audit of the first update, with the attacks that `gl.audit` takes by default."""', ""]
        lines += ["import gradleak as gl", *imports, ""]
        lines += [f"model = {factory}({_call(given)})"]
        if self.wish.weights is not None:
            lines.insert(3, "from safetensors.torch import load_file")
            lines += [f"model.load_state_dict(load_file({self.wish.weights!r}))"]
        lines += [f"batch = {function}({_call(own)})"]
        if ":" in loader:
            lines += [
                f"batch = (batch if isinstance(batch, gl.Batch) else gl.Batch(*batch)).rows(slice({self.wish.batch_size}))"
            ]
        if "domain" in self.data.table:
            shape = {"shape": tuple(self.batch.inputs.shape[1:]), **self.data.table["domain"]}
            lines += [f"batch = gl.Batch(batch.inputs, batch.targets, gl.Domain({_call(shape)}))"]
        lines += ["release = gl.Release(gl.FedSGD(), [])  # or [gl.Clip(1.0), gl.GaussianNoise(std=0.01)]"]
        if ":" in loss:
            lines.insert(3, f"from {loss.partition(':')[0]} import {loss.partition(':')[2]}")
        said = loss.partition(":")[2] if ":" in loss else repr(loss)
        lines += [
            'options = gl.AuditOptions(budget="1m")  # left out, it takes as long as the attacks do',
            f"record = gl.audit(model, batch, loss={said}, mode={self.wish.mode!r}, release=release, options=options)",
            "print(record.verdicts[-1].explanation)",
            "record.open()  # the report, in the browser",
        ]
        return "\n".join(lines) + "\n"


def _call(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_python(value)}" for key, value in arguments.items())


def _python(value: Any) -> str:
    return repr(dict(value)) if isinstance(value, Mapping) else repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    """A value as TOML writes it; texts of JSON are texts of TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_toml(inside)}" for name, inside in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
