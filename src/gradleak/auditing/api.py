"""`gradleak.audit`: an audit of one's own model and batch in one call."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from torch import Tensor, nn

from gradleak.attacks import Attack
from gradleak.auditing.budget import Budget
from gradleak.auditing.cautions import cautions
from gradleak.auditing.cores import paying_jobs
from gradleak.auditing.default_plan import default_plan
from gradleak.auditing.device import device_of
from gradleak.auditing.duration import duration
from gradleak.auditing.executor import NoProcessesError
from gradleak.auditing.plan import Plan
from gradleak.auditing.run import Progress, estimate, run_plan
from gradleak.core import Batch, Defense, HonestButCurious, Protocol, Release, ThreatModel, Update
from gradleak.core.process import in_turn
from gradleak.results import InputError, Record, Thresholds, check_flags
from gradleak.results.errors import kind_of, nearest, shown
from gradleak.risk import Measure, SettingMeasure


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of a run, as distinct from its subject.

    Attributes:
        seed: all randomness derives from it.
        jobs: worker processes, 1 for none beside this one. None for all cores where the estimate says that they save ten
            seconds or more; never within a budget, in a process or thread that others have started, or on a GPU. It has no
            influence on any number.
        pictures: save originals and reconstructions beside the record (private data on disk: off by default).
        thresholds: when an example counts as rebuilt.
        max_bytes: memory budget of the closed-form operators.
        quiet: print neither the cost estimate nor progress.
        name: of the run.
        device: where the tasks compute: "cuda", "cuda:1", "mps" or "cpu"; None for where the model is. No part of the
            subject, but the record says it, and is not continued on another kind of device.
        budget: time for the tasks, as seconds or a text such as "30s", or a `Budget` that several audits share with their
            controls; None for as long as it takes. Closed forms come first then, an attack is begun only where they leave it a
            chance and it can end in time, and everything that was left out stands in the record with the reason.
    """

    seed: int = 0
    jobs: int | None = None
    pictures: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    max_bytes: int = 2**30
    quiet: bool = False
    name: str = "audit"
    device: str | None = None
    budget: Budget | str | float | None = None

    def __post_init__(self) -> None:
        """Check the truth values."""
        check_flags(self, "pictures", "quiet")
        if self.budget is not None and not isinstance(self.budget, Budget):
            object.__setattr__(self, "budget", Budget(self.budget, shared=False))


@in_turn
def audit(
    model: nn.Module,
    batch: Batch | tuple[Tensor, Tensor] | Mapping[str, Tensor],
    *unnamed: object,
    loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    mode: str = "eval",
    release: Release | None = None,
    threat: ThreatModel | None = None,
    attacks: Mapping[str, Attack] | None = None,
    measures: Sequence[Measure | SettingMeasure] | None = None,
    update: Update | None = None,
    out: str | os.PathLike[str] | None = None,
    options: AuditOptions | None = None,
    **unknown: object,
) -> Record:
    """The record of an audit of one client step: gate, controls, closed-form risk, attacks, scores and verdicts.

    The whole batch is one update, as a client would send it. By default the server knows the model, the protocol, the
    batch size and the domain; labels are recovered by the attack; `GaussNewton` attacks where there are at most 4,096
    unknowns, beside it `InvertingGradients(iterations=1000, restarts=1)`, and `Peel` where it reads one example without a
    search (a chain of layers, no defense but noise). Sentences are attacked by `TokenRows` and `SpanSearch`. The estimated
    cost is printed first, in plain gradients and in minutes of one core.

    It works in any thread and installs no signal handlers. Runs in one process take turns, since models draw from
    generators that belong to all threads; these and other state of the process are as before afterwards.

    Args:
        model: any `nn.Module`; stays as it is.
        batch: a `Batch`, or a pair (inputs (b, ...), targets); state a `Domain` in the batch, else one is guessed. Or what
            a tokenizer returns, a dict with `input_ids` (`Batch.from_encoding`); its `labels` are the targets, else the ids.
        *unnamed: nothing; what follows without a name is refused in one line that says what to write.
        loss: "cross_entropy", "mse", "bce_with_logits", "nll", "causal_lm", "masked_lm" or a callable (outputs, targets) ->
            scalar.
        mode: "eval" or "train", as the client runs the model.
        release: protocol and defenses; default FedSGD without defenses.
        threat: what the server knows; default `HonestButCurious(batch_size=True, domain=True)`.
        attacks: by name; default as above.
        measures: closed-form measures; default I²F, its lower bound and the gradient norm, of sentences also
            `TokenError` where it is quick. Add `BayesianCramerRao(public=..., unit="pixel_rmse")` for a bound on every attacker
            that a verdict can read.
        update: the update that was really sent, if there is one; the consistency gate compares it with `batch`.
        out: folder of the record (continued if it holds this audit); default a new temporary folder.
        options: seed, jobs, thresholds, pictures.
        **unknown: nothing; another name is refused in one line that says what to write.

    Returns:
        The record; `record.verdicts[-1]` is the verdict on the run, `gradleak.write_html(record, path)` the report.

    Raises:
        GradleakError: in one line, with what was expected, what came and what to do.
    """
    if unnamed:
        raise InputError(_how_to_name(unnamed[0]))
    if unknown:
        raise InputError(_what_to_write(next(iter(unknown))))
    chosen = AuditOptions() if options is None else options
    whole = _batch(batch)
    _check_kinds(release, update, threat, chosen)
    _check_attacks(attacks)
    _check_measures(measures)
    device = None if chosen.device is None else device_of(chosen.device)
    plan = default_plan(
        model,
        whole,
        loss=loss,
        mode=mode,
        release=release,
        attacks=attacks,
        measures=measures,
        quick=chosen.budget is not None,
    )
    site = plan.site
    if update is not None:
        site = replace(site, scenarios=[replace(site.scenarios[0], updates={0: update})])
    site = replace(
        site,
        name=chosen.name,
        seed=chosen.seed,
        threat=threat or HonestButCurious(),
        thresholds=chosen.thresholds,
        pictures=chosen.pictures,
        max_bytes=chosen.max_bytes,
    )
    plan = replace(plan, site=site)
    folder = tempfile.mkdtemp(prefix="gradleak-") if out is None else out
    for warning in _warnings(model, mode, plan) if not chosen.quiet else ():
        sys.stderr.write(f"gradleak: {warning}\n")
    assert chosen.budget is None or isinstance(chosen.budget, Budget)
    expected = None
    if not chosen.quiet:
        # Python and torch are there, and no page is written.
        expected = replace(duration(plan, device), beside=0.5)
        limit = "" if chosen.budget is None else f" without the budget of {chosen.budget.seconds:g} s"
        sys.stderr.write(
            f"gradleak: about {estimate(plan):,.0f} plain gradients, {expected}{limit}, record in {folder}\n"
        )
        for refusal in plan.refusals():
            sys.stderr.write(f"gradleak: {refusal}\n")
    progress = None if chosen.quiet else _report_progress(plan)
    if chosen.jobs is not None or chosen.budget is not None or device is not None:
        # One process for a device, which several would share.
        jobs = chosen.jobs or 1
        return run_plan(plan, folder, jobs=jobs, progress=progress, budget=chosen.budget, device=device)
    jobs = paying_jobs(plan, expected)
    try:
        return run_plan(plan, folder, jobs=jobs, progress=progress)
    except NoProcessesError as error:
        if jobs == 1:
            raise
        # Nobody asked for processes, and what they have done stays.
        sys.stderr.write(f"gradleak: goes on in one process, since others failed ({error})\n")
        return run_plan(plan, folder, jobs=1, progress=progress)


def _what_to_write(name: str) -> str:
    """One line for an argument that `audit` does not have."""
    releases = {"defenses": _DEFENDED, "protocol": "release=Release(protocol)"}
    options = {one.name: f"options=AuditOptions({one.name}=...)" for one in fields(AuditOptions)}
    instead = {**releases, "defense": _DEFENDED, **options}.get(name)
    hint = f"write {instead}" if instead else nearest(name, sorted({*_NAMED, *releases, *options}))
    return f"audit: expected one of {', '.join(_NAMED)}, got {shown(name)}" + (f"; {hint}" if hint else "")


def _how_to_name(given: object) -> str:
    """One line for an argument that follows the model and the batch without a name."""
    first = next(iter(given), None) if isinstance(given, list | tuple) else given
    first = next(iter(first.values()), None) if isinstance(first, Mapping) else first
    kind = first if isinstance(first, type) else type(first)
    instead = next((text for base, text in _UNNAMED.items() if issubclass(kind, base)), None)
    hint = f"write {instead}" if instead else f"name it: one of {', '.join(_NAMED)}"
    return f"audit: expected a model, a batch and the rest by name, got {kind_of(first)} as the third; {hint}"


_NAMED = ("attacks", "loss", "measures", "mode", "options", "out", "release", "threat", "update")
_DEFENDED = "release=Release(FedSGD(), [...])"
# What is written for an argument without a name, by the first class that fits it.
_UNNAMED: Mapping[type, str] = {
    Defense: _DEFENDED,
    Protocol: "release=Release(protocol)",
    Release: "release=...",
    ThreatModel: "threat=...",
    Attack: "attacks={name: attack}",
    Measure: "measures=[...]",
    SettingMeasure: "measures=[...]",
    Update: "update=...",
    AuditOptions: "options=...",
    str: "loss=...",
    os.PathLike: "out=...",
}


def _batch(batch: Any) -> Batch:
    """The batch, cut from any graph: what made its inputs is no part of the audit."""
    if isinstance(batch, Mapping) and "input_ids" in batch:
        batch = Batch.from_encoding(batch)
    if (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and isinstance(batch[0], Mapping)
        and "input_ids" in batch[0]
    ):
        batch = Batch.from_encoding(batch[0], batch[1])
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        batch = Batch(*batch)
    if isinstance(batch, Batch):
        return replace(batch, inputs=batch.inputs.detach(), targets=batch.targets.detach())
    raise InputError(
        "batch: expected a gradleak.Batch or a pair of tensors (inputs, targets), got "
        f"{shown(batch)}; from a DataLoader take next(iter(loader)), from numpy use torch.as_tensor"
    )


def _check_kinds(release: object, update: object, threat: object, options: object) -> None:
    if release is not None and not isinstance(release, Release):
        raise InputError(
            f"release: expected gradleak.Release(protocol, [defenses]), got {kind_of(release)}; for a defense "
            "alone write Release(FedSGD(), [defense])"
        )
    if update is not None and not isinstance(update, Update):
        raise InputError(
            f"update: expected a gradleak.Update, got {kind_of(update)}; use Update.load(file) or Update(tensors=dict)"
        )
    if threat is not None and not isinstance(threat, ThreatModel):
        raise InputError(f"threat: expected a threat model such as HonestButCurious(), got {kind_of(threat)}")
    if not isinstance(options, AuditOptions):
        raise InputError(f"options: expected AuditOptions(seed=..., jobs=...), got {kind_of(options)}")


def _check_attacks(attacks: object) -> None:
    given = attacks
    if isinstance(attacks, Mapping):
        wrong = [one for one in attacks.values() if not isinstance(one, Attack)]
        if not wrong and all(isinstance(name, str) for name in attacks):
            return
        given = wrong[0] if wrong else attacks
    if attacks is None:
        return
    first = next(iter(given), None) if isinstance(given, list | tuple) else given
    kind = first if isinstance(first, type) else type(first)
    hint = f"write {{{kind.name!r}: {kind.__name__}(...)}}" if issubclass(kind, Attack) else "names are texts"
    raise InputError(f"attacks: expected a dict of attacks by name, got {kind_of(given)}; {hint}")


def _check_measures(measures: object) -> None:
    listed = [] if measures is None else measures if isinstance(measures, Collection) else [measures]
    wrong = next((one for one in listed if not isinstance(one, Measure | SettingMeasure)), None)
    if wrong is not None or not isinstance(measures, Collection | None):
        raise InputError(
            "measures: expected a list of measures such as [InversionInfluence()], got "
            f"{kind_of(measures if wrong is None else wrong)}; write [...]"
        )


def _warnings(model: nn.Module, mode: str, plan: Plan) -> Iterator[str]:
    """Warnings for a user before the numbers."""
    domain = plan.site.batches[0].domain
    if plan.site.domain_guessed and domain is not None:
        yield (
            f"no domain was stated; guessed {domain.kind.value} data, {domain.range_text}, from the "
            "private batch, and the adversary is told so; state gradleak.Domain in the Batch"
        )
    yield from cautions(plan)
    random_layers = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    if model.training and mode == "eval" and any(isinstance(part, random_layers) for part in model.modules()):
        yield "the model is in train mode and has BatchNorm or Dropout, but mode='eval' is audited; pass mode='train'"


def _report_progress(plan: Plan) -> Progress:
    def report(done: int, total: int, what: str) -> None:
        sys.stderr.write(f"gradleak: {plan.site.name}: {done}/{total} {what}\n")

    return report
