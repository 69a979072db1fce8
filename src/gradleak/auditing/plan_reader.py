"""The reader of plan files: objects from tables, by names and type hints.

`use` names the class or function, the other keys are its arguments. An unknown key is an error that names the nearest
valid one. Together with the registry of kinds this is the only place where a string picks code.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradleak.auditing.catalog import ARGUMENTS, KINDS, Constructor, Entry, catalog
from gradleak.auditing.plan_names import (
    beside,
    check_kind,
    classes,
    filled_in,
    fits,
    meant,
    missing,
    named,
    type_hints,
    without_use,
)
from gradleak.audits.base import (
    Adversary,
    PerfectAttackerRule,
    Scenario,
    Site,
    list_of,
    table_of,
    tables_of,
    typed,
    unknown,
)
from gradleak.audits.base.rows import without_private
from gradleak.core import (
    Batch,
    Domain,
    Objective,
    Release,
    derive_generator,
    derive_seed,
)
from gradleak.core.module_copy import first_line
from gradleak.core.process import ONE_CALL
from gradleak.core.randomness import global_generators
from gradleak.games import PerturbedGame
from gradleak.results import Count, GradleakError, PlanError, Requirement, Seed
from gradleak.results.errors import nearest, shown

SCENARIO = (
    "name",
    "protocol",
    "defenses",
    "examples",
    "attacks",
    "perfect_attacker",
    "adversaries",
    "reference",
    "require",
    "perturbation",
)
# So much of another library's message is shown.
_SAID = 300
# Rooms whose arguments name files, which lie beside the plan.
_OF_FILES = ("generators", "datasets", "models")
DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class PlanReader:
    """Turns tables of a plan file into objects.

    Attributes:
        folder: where relative paths start.
        seed: of the plan.
        content: the parsed file.
        rooms: the catalog.
        private: the batches of the client, of which public data keep none.
        about: what the plan is about, once that is read.
    """

    folder: Path
    seed: int
    content: Mapping[str, Any] = field(default_factory=dict)
    rooms: Mapping[str, Mapping[str, Entry]] = field(default_factory=catalog)
    private: Sequence[Batch] = ()
    about: Site | None = None

    @property
    def site(self) -> Site:
        """Subject of the plan: objective, batches, scenarios, threat."""
        if self.about is None:
            raise PlanError("plan: expected model, data and scenarios to be read before the audits")
        return self.about

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        """The value if it is a table of keys and values."""
        return table_of(value, where)

    def tables(self, value: Any, where: str) -> Sequence[Any]:
        """The value if it is a list of tables."""
        return tables_of(value, where)

    def typed(self, hint: Any, value: Any, where: str) -> Any:
        """The value converted to a type."""
        return typed(hint, value, where)

    def keys(self, table: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
        """Refuse unknown keys, naming the nearest one."""
        check_keys(table, allowed, where=where)

    def build(self, spec: Any, room: str, where: str, wanted: Sequence[type] = ()) -> Any:
        """The object that `spec` describes: `use` names the constructor, the rest are its arguments.

        An object that was made in Python stands for itself. Nothing is called that does not say that it makes one of the
        wanted kinds, by default those of the room.
        """
        wanted = tuple(wanted) or KINDS[room]
        if isinstance(spec, wanted):
            return spec
        table, constructor = table_of(spec, where), self.named(spec, room, where)
        check_kind(constructor, wanted, table["use"], where)
        table = beside(constructor, table, self.folder) if room in _OF_FILES else table
        return self.call(constructor, {key: value for key, value in table.items() if key != "use"}, where)

    def named(self, spec: Any, room: str, where: str) -> Constructor:
        """The class or function that a table names by `use`; nothing is made."""
        table = table_of(spec, where)
        if "use" not in table:
            raise PlanError(f"{where}: expected a key 'use' that names one of {', '.join(self.rooms[room])}")
        return self._find(table["use"], room, where)

    def call(self, constructor: Constructor, arguments: Any, where: str) -> Any:
        """`constructor(**arguments)` after names and types were checked."""
        checked = self.checked(constructor, arguments, where)
        try:
            with ONE_CALL, global_generators(derive_seed(self.seed, where, "global")):
                return constructor(**checked)
        except GradleakError as error:
            raise PlanError(f"{where}: {error}") from error
        except (Exception, SystemExit) as error:  # a user's own constructor may raise anything, or end the program
            name = getattr(constructor, "__name__", shown(constructor))
            said = " ".join(str(error).split())[:_SAID]
            raise PlanError(f"{where}: {name} raised {type(error).__name__}: {said}") from error

    def checked(self, constructor: Constructor, arguments: Any, where: str) -> dict[str, Any]:
        """The arguments of a call, names and types checked, with those that the plan's seed gives."""
        table = table_of(arguments, where)
        try:
            parameters = inspect.signature(constructor).parameters
        except ValueError as error:
            raise PlanError(
                f"{where}: expected a constructor whose arguments are known, got {shown(constructor)}"
            ) from error
        names = [name for name, parameter in parameters.items() if parameter.kind is not parameter.VAR_KEYWORD]
        meant(constructor, (key for key in table if key not in names), where)
        types = type_hints(constructor)
        own = filled_in(names, types)
        check_keys(table, [name for name in names if name not in own], where=where)
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
        check_keys(values, ("loss", "mode", "mask_seed", "dtype"), where="objective")
        dtype = values.get("dtype", "float32")
        mask_seed = typed(Seed, values.get("mask_seed", 0), "objective.mask_seed")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise PlanError(f"objective.dtype: expected one of {', '.join(DTYPES)}, got {shown(dtype)}")
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
            name = spec.pop("use", "")
            entry = self._find(name, "initializers", "model.initialize")
            check_kind(entry, KINDS["initializers"], name, "model.initialize")
            self.call(partial(entry, module), spec, "model.initialize")
        return module

    def loss(self, settings: Mapping[str, Any]) -> Any:
        """The loss by its name, or imported."""
        loss = settings.get("loss", "cross_entropy")
        if not isinstance(loss, str):
            raise PlanError(f"objective.loss: expected a name, got {shown(loss)}")
        if ":" not in loss:
            return loss
        found = self._find(loss, "losses", "objective.loss")
        if inspect.isclass(found):
            raise PlanError(
                f"objective.loss: expected {loss} to be a function (outputs, targets) -> scalar, got a class"
            )
        if not isinstance(found, nn.Module):
            check_kind(found, KINDS["losses"], loss, "objective.loss")
        return found

    def new_model(self) -> NewModel:
        """A function (generator) -> the plan's model with weights drawn anew, which can be pickled."""
        bare = PlanReader(folder=self.folder, seed=self.seed)
        return NewModel(reader=bare, model=table_of(self.content["model"], "model"))

    def plan_loss(self) -> Any:
        """The plan's loss, by its name or imported."""
        return self.loss(table_of(self.content.get("objective", {}), "objective"))

    def names(self, room: str) -> Sequence[str]:
        """Names that may stand for an entry in a room of the catalog."""
        return sorted(self.rooms[room])

    def widened(self, room: str, by: str) -> PlanReader:
        """The same reader, for which a room of the catalog has what another one has, too."""
        return replace(self, rooms={**self.rooms, room: {**self.rooms[by], **self.rooms[room]}})

    def holding(self, private: Sequence[Batch]) -> PlanReader:
        """The same reader, for which these batches are private."""
        return replace(self, private=private)

    @property
    def mode(self) -> Any:
        """The plan's mode, eval or train."""
        return table_of(self.content.get("objective", {}), "objective").get("mode", "eval")

    def batches(self, data: Any) -> tuple[list[Batch], bool]:
        """The plan's data and whether its domain was guessed; by default every example is released by itself."""
        table = dict(table_of(data, "data"))
        size, domain = typed(Count, table.pop("batch_size", 1), "data.batch_size"), table.pop("domain", None)
        whole = self.build(table, "datasets", "data", (Batch,))
        try:
            whole = Batch(*whole) if isinstance(whole, tuple) and len(whole) == 2 else whole
            guessed = Domain.guess(whole.inputs) if isinstance(whole, Batch) and not (whole.domain or domain) else None
        except GradleakError as error:
            raise PlanError(f"data: {table['use']}: {error}") from error
        if not isinstance(whole, Batch):
            raise PlanError(
                f"data: expected {table['use']} to return a Batch or (inputs, targets), got {type(whole).__name__}"
            )
        stated = None if domain is None else self._domain(domain, whole)
        domain = whole.domain or stated or guessed
        if whole.size % size:
            raise PlanError(
                f"data: expected a multiple of batch_size = {size}, got {whole.size} examples; change batch_size, or how many "
                "are taken"
            )
        return [
            replace(whole, domain=domain).rows(slice(start, start + size)) for start in range(0, whole.size, size)
        ], whole.domain is None and stated is None

    def _domain(self, given: Any, whole: Batch) -> Domain:
        """The domain that a plan states for data that state none; their shape goes without saying."""
        table = {"shape": list(whole.inputs.shape[1:]), **table_of(given, "data.domain")}
        if whole.domain is not None:
            raise PlanError("data.domain: expected none, since the data state their own; leave it out")
        return self.call(Domain, table, "data.domain")

    def scenario(self, spec: Any, place: int, count: int) -> Scenario:
        """One entry of `[[scenarios]]`."""
        where = f"scenarios[{place}]"
        table = table_of(spec, where)
        check_keys(table, SCENARIO, where=where)
        if "name" not in table:
            raise PlanError(f"{where}: expected a name")
        where = f"scenario {shown(table['name'])}"
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
            reference=typed(bool, table.get("reference", False), f"{where}, reference"),
            require=typed(Requirement | None, table.get("require"), f"{where}, require"),
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
            raise PlanError(f'{where}: expected "all" or a list of indices such as [0, 1], got {shown(chosen)}')
        if len(set(indices)) != len(indices):
            raise PlanError(f"{where}: expected every index once, got {shown(indices)}")
        return indices

    def _find(self, name: Any, room: str, where: str) -> Constructor:
        return named(name, room, self.rooms, where)

    def _value(self, value: Any, hint: Any, where: str) -> Any:
        if isinstance(value, dict) and "use" in value:
            return self._made(value, hint, where)
        without_use(hint, value, where)
        return value if hint is None else typed(hint, value, where)

    def _made(self, table: Mapping[str, Any], hint: Any, where: str) -> Any:
        """The object that a table in an argument describes, where the annotation takes its kind."""
        name = table["use"]
        if not isinstance(name, str):
            raise PlanError(f"{where}.use: expected a name, see `gradleak list`; got {shown(name)}")
        owner, wanted = name.partition(".")[0], classes(hint)
        rooms = [room for room in ARGUMENTS if owner in self.rooms[room]]
        if not rooms and ":" not in name:
            known = [entry for room in self.rooms.values() for entry in room]
            near = nearest(name, known)
            raise PlanError(f"{where}: nothing is called {shown(name)}; {near}{near and ' '}see `gradleak list`")
        constructor = self._find(name, rooms[0] if rooms else "datasets", where)
        if hint is None and ":" in name:
            raise PlanError(
                f"{where}: expected a name of `gradleak list`, since this argument does not say what it takes"
            )
        if hint is not None:
            check_kind(constructor, wanted, name, where)
        arguments = {key: value for key, value in table.items() if key != "use"}
        data = fits(constructor, KINDS["datasets"])
        own = data or rooms == ["generators"]
        made = self.call(constructor, beside(constructor, arguments, self.folder) if own else arguments, where)
        made = self._public(made) if data else made
        return made if hint is None else typed(hint, made, where)

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
            weights = load_file(file)
        except (SafetensorError, OSError) as error:
            raise PlanError(
                f"model.weights: expected a whole safetensors file, got {file}, a truncated or another one ({first_line(error)})"
            ) from error
        try:
            module.load_state_dict(weights)
        except RuntimeError as error:
            raise PlanError(f"model.weights: {file} does not fit the model: {' '.join(str(error).split())}") from error


@dataclass(frozen=True, kw_only=True)
class NewModel:
    """Makes new models of a plan's `[model]`, with weights from the seed of a generator."""

    reader: PlanReader
    model: Mapping[str, Any]

    def __call__(self, generator: torch.Generator) -> nn.Module:
        """A new model, with weights from the seed of the generator."""
        return replace(self.reader, seed=generator.initial_seed()).module(self.model)

    def identity_in_plans(self) -> object:
        """Identity for a fingerprint: its table and what that names, not the reader with all it could read."""
        return self.model, self.reader.named(self.model, "models", "model")


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
    return PlanReader(folder=Path(), seed=seed).call(constructor, arguments, where)


def check_arguments(constructor: Constructor, arguments: Mapping[str, Any], *, where: str) -> None:
    """Refuse what `configure` would refuse before it calls, for calls that come after hours of other work."""
    PlanReader(folder=Path(), seed=0).checked(constructor, arguments, where)


def _adversaries(value: Any, where: str) -> list[Adversary] | None:
    if value is None:
        return None
    wrong = [name for name in list_of(value, where) if name not in list(Adversary)]
    if wrong:
        raise PlanError(f"{where}: {unknown('adversary', str(wrong[0]), [adversary.value for adversary in Adversary])}")
    return [Adversary(name) for name in value]


def check_keys(table: Mapping[str, Any], allowed: Sequence[str], *, where: str) -> None:
    """Refuse keys that are not allowed, naming the nearest one that is.

    Raises:
        PlanError: naming the place.
    """
    for key in table:
        if key not in allowed:
            raise PlanError(f"{where}: {unknown('key', key, allowed)}")
