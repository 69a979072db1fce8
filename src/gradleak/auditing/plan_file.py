"""A plan file: nested constructor calls in TOML.

`use` names the class or function, the other keys are its arguments. An unknown key is an error that names the nearest
valid one. This is the only place where a string picks code.
"""

from __future__ import annotations

import difflib
import inspect
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradleak.attacks import Attack
from gradleak.auditing.adversary import Adversary
from gradleak.auditing.catalog import Constructor, Entry, catalog
from gradleak.auditing.global_seed import globally_seeded
from gradleak.auditing.inference_plan import InferencePlan, swept
from gradleak.auditing.layer_file import layers_plan
from gradleak.auditing.plan import Controls, PerfectAttackerRule, Plan, Scenario, unknown
from gradleak.auditing.plan_names import beside, filled_in, made_by, meant, missing, named, type_hints, without_use
from gradleak.auditing.plan_values import chosen_scenarios, list_of, table_of, tables_of, typed
from gradleak.auditing.privacy_file import privacy_plan
from gradleak.auditing.privacy_plan import PrivacyPlan
from gradleak.auditing.public_data import without_private
from gradleak.auditing.utility_plan import UtilityPlan
from gradleak.auditing.verdict import Thresholds
from gradleak.core import (
    Batch,
    Defense,
    Domain,
    Objective,
    Protocol,
    Release,
    ThreatModel,
    derive_generator,
    derive_seed,
)
from gradleak.games import InferenceGame, PerturbedGame
from gradleak.privacy import HypothesisPair, PrivacyAudit
from gradleak.privacy.lower_bounds import EpsilonEstimator
from gradleak.results import GradleakError, InputError, PlanError
from gradleak.risk import LayerMeasure, Measure, SettingMeasure
from gradleak.training import GroupNormForBatchNorm, Task, Training, split

TOP_LEVEL = ("name", "seed", "pictures", "save_updates", "checkpoint_seconds", "model", "data", "objective", "threat",
             "thresholds", "controls", "adversaries", "attacks", "measures", "scenarios", "utility", "inference",
             "privacy", "layers")  # fmt: skip
SCENARIO = ("name", "protocol", "defenses", "examples", "attacks", "perfect_attacker", "adversaries", "perturbation")
# What an argument may hold.
_INSIDE = ("attacks", "steps", "measures", "solvers", "defenses", "protocols", "models", "generators", "classifiers",
           "features", "encoders", "canaries", "estimators", "claim errors")  # fmt: skip
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}
BASES: Mapping[str, tuple[type, ...]] = {
    "attacks": (Attack,),
    "audits": (PrivacyAudit, HypothesisPair),
    "estimators": (EpsilonEstimator,),
    "defenses": (Defense,),
    "games": (InferenceGame,),
    "measures": (Measure, SettingMeasure),
    "layer measures": (LayerMeasure,),
    "protocols": (Protocol,),
    "threats": (ThreatModel,),
}


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a TOML file.

    Args:
        path: the file; relative paths inside it are taken from its folder.

    Raises:
        PlanError: in one line, for a missing file, bad TOML, an unknown key (naming the nearest), a bad value.
        GradleakError: if model, data and release do not fit together.
    """
    file = Path(path)
    if not file.is_file():
        raise PlanError(f"{file}: expected a plan file (TOML), got no such file")
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{file}: not valid TOML: {error}") from error
    return build_plan(content, folder=file.parent)


def build_plan(content: Mapping[str, Any], *, folder: Path) -> Plan:
    """The plan that a parsed plan file describes; see `load_plan`."""
    _check_keys(content, TOP_LEVEL, where="plan")
    alone = any(key in content for key in ("inference", "privacy", "layers"))
    for key in ("model", "scenarios") if alone else ("model", "data", "scenarios"):
        if key not in content:
            section = f"[[{key}]]" if key == "scenarios" else f"[{key}]"
            raise PlanError(f"plan: expected a section {section}, got none")
    seed = typed(int, content.get("seed", 0), "seed")
    builder = _Builder(folder=folder, seed=seed)
    objective = builder.objective(content["model"], content.get("objective", {}))
    batches, guessed = builder.batches(content["data"]) if "data" in content else ([], False)
    builder = replace(builder, private=batches)
    shared = {key: content[key] for key in ("adversaries",) if key in content}
    attacks = {
        name: builder.build(spec, "attacks", f"attacks.{name}")
        for name, spec in table_of(content.get("attacks", {}), "attacks").items()
    }
    measures = [
        builder.build(spec, "measures", f"measures.{name}")
        for name, spec in table_of(content.get("measures", {}), "measures").items()
    ]
    scenarios = [
        builder.scenario({**shared, **table_of(spec, f"scenarios[{place}]")}, place, len(batches))
        for place, spec in enumerate(tables_of(content["scenarios"], "scenarios"))
    ]
    threat = builder.build(content.get("threat", {"use": "HonestButCurious"}), "threats", "threat")
    return Plan(
        name=typed(str, content.get("name", "audit"), "name"),
        seed=seed,
        objective=objective,
        batches=batches,
        scenarios=scenarios,
        attacks=attacks,
        measures=measures,
        threat=threat,
        thresholds=builder.call(Thresholds, content.get("thresholds", {}), "thresholds"),
        controls=builder.call(Controls, content.get("controls", {}), "controls"),
        pictures=typed(bool, content.get("pictures", False), "pictures"),
        save_updates=typed(bool, content.get("save_updates", False), "save_updates"),
        checkpoint_seconds=typed(float | None, content.get("checkpoint_seconds"), "checkpoint_seconds"),
        domain_guessed=guessed,
        utility=builder.utility(content) if "utility" in content else None,
        inference={
            name: builder.inference(spec, content, f"inference.{name}")
            for table, given in table_of(content.get("inference", {}), "inference").items()
            for name, spec in swept(table, table_of(given, f"inference.{table}")).items()
        },
        privacy={
            name: builder.privacy(spec, content, (objective, scenarios), f"privacy.{name}")
            for name, spec in table_of(content.get("privacy", {}), "privacy").items()
        },
        layers={
            name: layers_plan(builder, spec, (objective, threat), f"layers.{name}")
            for name, spec in table_of(content.get("layers", {}), "layers").items()
        },
        source=content,
    )


@dataclass(frozen=True, kw_only=True)
class _Builder:
    """Turns tables of a plan file into objects."""

    folder: Path
    seed: int
    rooms: Mapping[str, Mapping[str, Entry]] = field(default_factory=catalog)
    private: Sequence[Batch] = ()

    def build(self, spec: Any, room: str, where: str) -> Any:
        """The object that `spec` describes: `use` names the constructor, the rest are its arguments."""
        table = table_of(spec, where)
        if "use" not in table:
            raise PlanError(f"{where}: expected a key 'use' that names one of {', '.join(self.rooms[room])}")
        constructor = self._find(table["use"], room, where)
        if not callable(constructor):
            raise PlanError(f"{where}: expected {table['use']} to be a class or a function, got {constructor!r}")
        expected = BASES.get(room)
        kind = made_by(constructor)
        if expected is not None and kind is not None and not issubclass(kind, expected):
            raise PlanError(f"{where}: expected {table['use']} to be a kind of {_names(expected)}")
        if expected is not None and kind is None:
            raise PlanError(f"{where}: expected {table['use']} to be a class, a kind of {_names(expected)}")
        table = beside(table, self.folder) if room == "generators" else table
        return self.call(constructor, {key: value for key, value in table.items() if key != "use"}, where)

    def call(self, constructor: Constructor, arguments: Any, where: str) -> Any:
        """`constructor(**arguments)` after names and types were checked."""
        checked = self.checked(constructor, arguments, where)
        try:
            with globally_seeded(derive_seed(self.seed, where, "global")):
                return constructor(**checked)
        except GradleakError as error:
            raise PlanError(f"{where}: {error}") from error
        except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, ArithmeticError, OSError) as error:
            name = getattr(constructor, "__name__", repr(constructor))
            raise PlanError(f"{where}: {name} raised {type(error).__name__}: {error}") from error

    def checked(self, constructor: Constructor, arguments: Any, where: str) -> dict[str, Any]:
        """The arguments of a call, names and types checked, with those that the plan's seed gives."""
        table = table_of(arguments, where)
        parameters = inspect.signature(constructor).parameters
        names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        meant(constructor, (key for key in table if key not in names), where)
        types = type_hints(constructor)
        own = filled_in(names, types)
        _check_keys(table, [name for name in names if name not in own], where=where)
        checked = {key: self._value(value, types.get(key), f"{where}.{key}") for key, value in table.items()}
        if "seed" in own:
            checked["seed"] = derive_seed(self.seed, where)
        if "generator" in own:
            checked["generator"] = derive_generator(self.seed, where)
        lacking = [
            name for name, parameter in parameters.items()
            if parameter.default is parameter.empty and name in names and name not in checked
        ]  # fmt: skip
        if lacking:
            raise PlanError(f"{where}: expected {missing(lacking, types)} too")
        return checked

    def objective(self, model: Any, settings: Any) -> Objective:
        """The objective of the plan's model, with weights from a file or drawn from the seed."""
        weights = table_of(model, "model").get("weights")
        module = self.module(model)
        if weights is not None:
            self._load_weights(module, self.folder / typed(str, weights, "model.weights"))
        values = table_of(settings, "objective")
        _check_keys(values, ("loss", "mode", "mask_seed", "dtype"), where="objective")
        dtype = values.get("dtype", "float32")
        mask_seed = typed(int, values.get("mask_seed", 0), "objective.mask_seed")
        if dtype not in DTYPES:
            raise PlanError(f"objective.dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
        objective = Objective.from_module(
            module,
            loss=self.loss(values),
            mode=values.get("mode", "eval"),
            mask_seed=mask_seed,
        )
        return objective.to(DTYPES[dtype])

    def module(self, model: Any) -> nn.Module:
        """The plan's model with weights drawn from the seed."""
        table = dict(table_of(model, "model"))
        table.pop("weights", None)
        initialize = table.pop("initialize", None)
        module = self.build(table, "models", "model")
        if not isinstance(module, nn.Module):
            raise PlanError(f"model: expected {table['use']} to return a torch.nn.Module, got {type(module).__name__}")
        if initialize is not None:
            spec = dict(table_of(initialize, "model.initialize"))
            entry = self._find(spec.pop("use", ""), "initializers", "model.initialize")
            self.call(partial(entry, module), spec, "model.initialize")
        return module

    def loss(self, settings: Mapping[str, Any]) -> Any:
        """The loss by its name, or imported."""
        loss = settings.get("loss", "cross_entropy")
        if not isinstance(loss, str):
            raise PlanError(f"objective.loss: expected a name, got {loss!r}")
        return self._find(loss, "models", "objective.loss") if ":" in loss else loss

    def utility(self, content: Mapping[str, Any]) -> UtilityPlan:
        """The section `[utility]`: rows of their own, and how new models of `[model]` are trained on them."""
        table = dict(table_of(content["utility"], "utility"))
        if "data" not in table or "test_rows" not in table:
            raise PlanError("utility: expected data (rows to train and to test on) and test_rows too")
        trained = list(inspect.signature(Training).parameters)
        _check_keys(table, ["data", "test_rows", "seeds", "learning_rates", "replacement", *trained], where="utility")
        rows = self.build(table.pop("data"), "datasets", "utility.data")
        rows = Batch(*rows) if isinstance(rows, tuple) and len(rows) == 2 else rows
        if not isinstance(rows, Batch):
            raise PlanError(f"utility.data: expected a Batch or (inputs, targets), got {type(rows).__name__}")
        test_rows = typed(int, table.pop("test_rows"), "utility.test_rows")
        seeds = typed(int, table.pop("seeds", 3), "utility.seeds")
        rates = typed(list[float], table.pop("learning_rates", []), "utility.learning_rates")
        table.setdefault("learning_rate", rates[0] if rates else None)
        if table["learning_rate"] is None:
            raise PlanError("utility: expected learning_rate, or learning_rates to choose from")
        replacement = table.pop("replacement", None)
        settings = table_of(content.get("objective", {}), "objective")
        try:
            train, test = split(rows, test_rows=test_rows, generator=derive_generator(self.seed, "utility", "split"))
        except InputError as error:
            raise PlanError(f"utility.test_rows: {error}") from error
        return UtilityPlan(
            task=Task(
                name="utility",
                train=train,
                test=test,
                make_model=_NewModel(builder=replace(self, private=()), model=table_of(content["model"], "model")),
                loss=self.loss(settings),
                mode=settings.get("mode", "eval"),
                replacement=None
                if replacement is None
                else self.call(GroupNormForBatchNorm, replacement, "utility.replacement"),
            ),
            training=self.call(Training, table, "utility"),
            seeds=seeds,
            learning_rates=rates,
        )

    def inference(self, spec: Any, content: Mapping[str, Any], where: str) -> InferencePlan:
        """One table `[inference.NAME]`: a game on rows of its own, with new models of `[model]`."""
        table = dict(table_of(spec, where))
        for key, place in (
            ("model", "[model]"),
            ("release", "[[scenarios]]"),
            ("loss", "[objective]"),
            ("mode", "[objective]"),
        ):
            if key in table:
                raise PlanError(f"{where}: unknown key {key!r}; a game takes it from {place}")
        if "control" in table:
            raise PlanError(f"{where}: unknown key 'control'; an audit plays both controls of every game by itself")
        seeds = typed(int, table.pop("seeds", 1), f"{where}.seeds")
        scenarios = chosen_scenarios(table.pop("scenarios", "all"), f"{where}.scenarios")
        table |= self.training(content)
        return InferencePlan(game=self.build(table, "games", where), seeds=seeds, scenarios=scenarios)

    def privacy(
        self, spec: Any, content: Mapping[str, Any], setting: tuple[Objective, Sequence[Scenario]], where: str
    ) -> PrivacyPlan:
        """One table `[privacy.NAME]`: an audit with new models of `[model]`, or a user's own pair of hypotheses."""
        table = dict(table_of(spec, where))
        scenarios = chosen_scenarios(table.pop("scenarios", "all"), f"{where}.scenarios")
        return privacy_plan(self, table, self.training(content), setting, (where, scenarios))

    def training(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """What games and privacy audits take from `[model]` and `[objective]`."""
        settings = table_of(content.get("objective", {}), "objective")
        return {
            "model": _NewModel(builder=replace(self, private=()), model=table_of(content["model"], "model")),
            "loss": self.loss(settings),
            "mode": settings.get("mode", "eval"),
        }

    def batches(self, data: Any) -> tuple[list[Batch], bool]:
        """The plan's data and whether its domain was guessed; by default every example is released by itself."""
        table = dict(table_of(data, "data"))
        size = typed(int, table.pop("batch_size", 1), "data.batch_size")
        if size < 1:
            raise PlanError(f"data.batch_size: expected a whole number of at least 1, got {size}")
        whole = self.build(table, "datasets", "data")
        if isinstance(whole, tuple) and len(whole) == 2:
            whole = Batch(*whole)
        if not isinstance(whole, Batch):
            raise PlanError(
                f"data: expected {table['use']} to return a Batch or (inputs, targets), got {type(whole).__name__}"
            )
        domain = whole.domain or Domain.guess(whole.inputs)
        if whole.size % size:
            raise PlanError(f"data: {whole.size} examples do not divide into batches of {size}; change batch_size")
        return [
            _part(replace(whole, domain=domain), slice(start, start + size)) for start in range(0, whole.size, size)
        ], whole.domain is None

    def scenario(self, spec: Any, place: int, count: int) -> Scenario:
        """One entry of `[[scenarios]]`."""
        where = f"scenarios[{place}]"
        table = table_of(spec, where)
        _check_keys(table, SCENARIO, where=where)
        if "name" not in table:
            raise PlanError(f"{where}: expected a name")
        where = f"scenario {table['name']!r}"
        examples = self._examples(table.get("examples", "all"), range(count), f"{where}, examples")
        protocol = self.build(table.get("protocol", {"use": "FedSGD"}), "protocols", f"{where}, protocol")
        defenses = [
            self.build(item, "defenses", f"{where}, defenses[{number}]")
            for number, item in enumerate(tables_of(table.get("defenses", []), f"{where}, defenses"))
        ]
        rule = table.get("perfect_attacker")
        return Scenario(
            name=typed(str, table["name"], f"{where}, name"),
            release=Release(protocol, defenses),
            examples=examples,
            attacks={
                name: self._examples(chosen, examples, f"{where}, attacks.{name}")
                for name, chosen in table_of(table.get("attacks", {}), f"{where}, attacks").items()
            },
            adversaries=_adversaries(table.get("adversaries"), f"{where}, adversaries"),
            perturbation=None
            if "perturbation" not in table
            else self.call(PerturbedGame, table["perturbation"], f"{where}, perturbation"),
            perfect_attacker=None
            if rule is None
            else self.call(PerfectAttackerRule, rule, f"{where}, perfect_attacker"),
        )

    def _examples(self, chosen: Any, allowed: Sequence[int], where: str) -> list[int]:
        if chosen == "all":
            return list(allowed)
        indices = list_of(chosen, where)
        if not indices and not allowed:
            return []
        if not indices or not all(isinstance(index, int) and not isinstance(index, bool) for index in indices):
            raise PlanError(f'{where}: expected "all" or a list of indices such as [0, 1], got {chosen!r}')
        if len(set(indices)) != len(indices):
            raise PlanError(f"{where}: expected every index once, got {indices}")
        return indices

    def _find(self, name: Any, room: str, where: str) -> Constructor:
        return named(name, room, self.rooms, where)

    def _value(self, value: Any, hint: Any, where: str) -> Any:
        if isinstance(value, dict) and "use" in value:
            name = value["use"]
            for room in _INSIDE:
                if name in self.rooms[room]:
                    return self.build(value, room, where)
            if name in self.rooms["datasets"] or (isinstance(name, str) and ":" in name):
                return self._public(self.build(value, "datasets", where))
            known = [entry for room in self.rooms.values() for entry in room]
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise PlanError(f"{where}: nothing is called {name!r}; {hint}see `gradleak list`")
        without_use(hint, value, where)
        return value if hint is None else typed(hint, value, where)

    def _public(self, built: Any) -> Any:
        """Data in an argument are public: what the client holds is left out of them."""
        if isinstance(built, tuple) and len(built) == 2:
            built = Batch(*built)
        return without_private(built, self.private) if isinstance(built, Batch) else built

    def _load_weights(self, module: nn.Module, file: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if file.suffix != ".safetensors" or not file.is_file():
            raise PlanError(f"model.weights: expected an existing .safetensors file, got {file}")
        try:
            module.load_state_dict(load_file(file))
        except (SafetensorError, RuntimeError) as error:
            raise PlanError(f"model.weights: {file} does not fit the model: {' '.join(str(error).split())}") from error


@dataclass(frozen=True, kw_only=True)
class _NewModel:
    """Makes new models of a plan's `[model]`, with weights from the seed of a generator."""

    builder: _Builder
    model: Mapping[str, Any]

    def __call__(self, generator: torch.Generator) -> nn.Module:
        return replace(self.builder, seed=generator.initial_seed()).module(self.model)


def _part(whole: Batch, rows: slice) -> Batch:
    sensitive = None if whole.sensitive is None else whole.sensitive[rows]
    return Batch(whole.inputs[rows], whole.targets[rows], whole.domain, sensitive)


def configure(constructor: Constructor, arguments: Mapping[str, Any], *, where: str, seed: int = 0) -> Any:
    """`constructor(**arguments)` after names and types were checked, with the errors of a plan file.

    Args:
        constructor: a class or function.
        arguments: as a parsed TOML table.
        where: what to call the table in messages.
        seed: what a seed or generator of random numbers among the arguments is derived from.

    Raises:
        PlanError: for an unknown key (naming the nearest), a missing or a badly typed one.
    """
    return _Builder(folder=Path(), seed=seed).call(constructor, arguments, where)


def check_arguments(constructor: Constructor, arguments: Mapping[str, Any], *, where: str) -> None:
    """Refuse what `configure` would refuse before it calls, for calls that come after hours of other work."""
    _Builder(folder=Path(), seed=0).checked(constructor, arguments, where)


def _adversaries(value: Any, where: str) -> list[Adversary] | None:
    if value is None:
        return None
    wrong = [name for name in list_of(value, where) if name not in list(Adversary)]
    if wrong:
        raise PlanError(f"{where}: {unknown('adversary', str(wrong[0]), [adversary.value for adversary in Adversary])}")
    return [Adversary(name) for name in value]


def _names(bases: Sequence[type]) -> str:
    return " or ".join(base.__name__ for base in bases)


def _check_keys(table: Mapping[str, Any], allowed: Sequence[str], *, where: str) -> None:
    for key in table:
        if key not in allowed:
            raise PlanError(f"{where}: {unknown('key', key, allowed)}")


__all__ = ["build_plan", "check_arguments", "configure", "load_plan"]
