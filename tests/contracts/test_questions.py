"""Questions in place of types: a strange defense or protocol claims nothing, and nobody asks what class one is."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.attacks.labels.cases import net, released
from tests.training.releases.released_batches import at_once, batches, objective, one_by_one, rows
from torch import Tensor

import gradleak
from gradleak import defenses
from gradleak.accounting import mechanism_of
from gradleak.attacks import Attack, ConsistentLabels
from gradleak.attacks.inversion.gauss_newton.spectral import spectral_noise
from gradleak.attacks.inversion.reading import known_law, laplace_scale
from gradleak.auditing import compatibility
from gradleak.audits.risk.derivative import quiet
from gradleak.core import (
    Batch,
    BatchDefense,
    Course,
    Defense,
    DiagonalGaussian,
    ExampleDefense,
    Guarantee,
    HonestButCurious,
    Laplace,
    ModelDefense,
    MovedAlong,
    NoGuarantee,
    Noise,
    NotGaussian,
    Objective,
    Protocol,
    Release,
    Rounded,
    Scaled,
    ScaledRows,
    Thinned,
    Unchanged,
    UpdateDefense,
    UpdateKind,
    mean_gradient,
)
from gradleak.games.information import gaussian_channel_information
from gradleak.protocols import FedAvg, FedSGD, LocalAdam, SecureAggregation
from gradleak.results import InputError, Outcome
from gradleak.risk import LayerMeasure, VisibleLayers
from gradleak.testing import check_defense
from gradleak.training import BatchReleases, Route

SOURCE = Path(gradleak.__file__).parent
NAMES = ["0.weight", "0.bias", "2.weight", "2.bias"]


@dataclass(frozen=True, kw_only=True)
class StrangeNoise(UpdateDefense):
    """Gaussian noise, drawn for the last tensor first, by an author who answers no question."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    std: float = 0.1

    def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(update)

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return DiagonalGaussian(std=dict.fromkeys(shapes, self.std))

    def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
        noise = {
            name: torch.randn(update[name].shape, generator=generator, dtype=update[name].dtype)
            for name in reversed(list(update))
        }
        return {name: tensor + self.std * noise[name] for name, tensor in update.items()}


@dataclass(frozen=True, kw_only=True)
class StrangeRows(ExampleDefense):
    """Bounded rows with an average of its own, the median, by an author who answers no question."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC
    closes: ClassVar[bool] = True

    def mean(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.tanh() for name, tensor in gradients.items()}

    def average(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.median(dim=0).values for name, tensor in gradients.items()}


@dataclass(frozen=True, kw_only=True)
class StrangeLook(BatchDefense):
    """A look at the batch, by an author who answers no question."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def mean(self, update: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        return {name: tensor * (1 + batch.inputs.mean()) for name, tensor in update.items()}

    def noise(self, shapes: Mapping[str, Tensor]) -> Noise:
        return None

    def draw(self, update: Mapping[str, Tensor], *, batch: Batch, **told: object) -> dict[str, Tensor]:
        return self.mean(update, batch)


@dataclass(frozen=True, kw_only=True)
class StrangeModel(ModelDefense):
    """A part of a model, by an author who answers no question."""

    guarantee: ClassVar[Guarantee] = Guarantee.HEURISTIC

    def check(self, objective: Objective) -> None:
        """Every objective will do."""


STRANGERS: list[Defense] = [StrangeNoise(), StrangeRows(), StrangeLook(), StrangeModel()]
each_stranger = pytest.mark.parametrize("stranger", STRANGERS, ids=lambda defense: type(defense).__name__)


@each_stranger
def test_a_stranger_claims_nothing(stranger: Defense) -> None:
    check_defense(stranger)
    assert stranger.effect(NAMES) is None
    assert not stranger.adds_in_order
    assert not stranger.flat
    assert stranger.kept_share is None
    assert stranger.seen_without(["0"]) is stranger


def test_a_strange_average_has_no_divisor_and_the_mean_has_one() -> None:
    assert StrangeRows().divisor(4) is None
    assert defenses.ClipPerExample(1.0).divisor(4) == 4
    assert defenses.DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum").divisor(4) == 4
    assert defenses.DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum", expected_batch_size=7.5).divisor(4) == 7.5


@pytest.mark.parametrize("stranger", STRANGERS[:3], ids=lambda defense: type(defense).__name__)
def test_label_attacks_claim_nothing_behind_a_stranger(stranger: Defense) -> None:
    update, knowledge = released(net(), [1, 1, 4, 7], defenses=[stranger])
    found = ConsistentLabels()(update, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.outcome is Outcome.NOT_IDENTIFIABLE
    assert f"what {type(stranger).__name__} does to counts is not modeled" in found.note


@pytest.mark.parametrize("stranger", STRANGERS[:3], ids=lambda defense: type(defense).__name__)
def test_inversions_take_a_stranger_for_no_law_and_no_rule_that_they_know(stranger: Defense) -> None:
    loss, release = objective(), Release(FedSGD(), [stranger])
    assert laplace_scale(release, loss.params) is None
    law = known_law(release, loss, 4)
    assert law == release.noise(loss, examples=4)
    knowledge = HonestButCurious(targets=True).disclose(loss, release, rows())
    assert spectral_noise(knowledge) is None


@pytest.mark.parametrize(
    "chain",
    [
        [StrangeNoise()],
        [defenses.Clip(1.0), StrangeNoise()],
        [defenses.ClipPerExample(1.0), StrangeNoise()],
        [StrangeRows(), defenses.GaussianNoise(std=0.1)],
        [StrangeLook(), defenses.GaussianNoise(std=0.1)],
        [defenses.Clip(1.0), defenses.GaussianNoise(std=0.1), StrangeLook()],
    ],
    ids=lambda chain: ", ".join(type(defense).__name__ for defense in chain),
)
def test_accounting_and_bounds_on_information_count_nothing_for_a_stranger(chain: list[Defense]) -> None:
    release, loss = Release(FedSGD(), chain), objective()
    assert isinstance(mechanism_of(release, loss, 4), NoGuarantee)
    assert gaussian_channel_information([release], loss, examples=4).outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize("stranger", STRANGERS[:3], ids=lambda defense: type(defense).__name__)
@pytest.mark.parametrize("after", [[], [defenses.GaussianNoise(std=0.1)]], ids=["alone", "noise after"])
def test_games_release_behind_a_stranger_what_one_release_after_another_gives(
    stranger: Defense, after: list[Defense]
) -> None:
    loss, release, index = objective(), Release(FedSGD(), [stranger, *after]), batches()
    releases = BatchReleases(loss, release, rows())
    assert not isinstance(stranger, ExampleDefense) or releases.route is not Route.LINEAR_LAYERS
    torch.testing.assert_close(
        at_once(releases, index), one_by_one(loss, release, rows(), index), rtol=1e-9, atol=1e-12
    )


def test_a_stranger_stays_in_what_is_differentiated_and_in_what_is_seen_of_layers() -> None:
    loss, stranger = objective(), StrangeNoise()
    release = Release(FedSGD(), [defenses.GaussianNoise(std=0.1), stranger])
    assert quiet(release, loss).defenses == (stranger,)
    seen = VisibleLayers.of(loss, "2").release(loss, release)
    assert stranger in seen.defenses


def test_a_stranger_in_the_model_has_to_say_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    made = dict(compatibility.defenses()) | {"StrangeModel": StrangeModel}
    monkeypatch.setattr(compatibility, "defenses", lambda: made)
    with pytest.raises(InputError, match=r"StrangeModel\.inserted"):
        compatibility.small_setting("StrangeModel")


ANSWERS: list[tuple[Defense, object]] = [
    (defenses.GaussianNoise(std=0.1), Unchanged()),
    (defenses.LaplaceNoise(scale=0.1), Unchanged()),
    (defenses.LayerNoise(std={"0": 0.1}), Unchanged()),
    (defenses.Clip(2.0), Scaled(groups=[NAMES], max_norm=2.0)),
    (defenses.ClipPerLayer(2.0), Scaled(groups=[NAMES[:2], NAMES[2:]], max_norm=2.0)),
    (defenses.ClipPerExample(2.0), ScaledRows(groups=[NAMES], max_norms=[2.0])),
    (defenses.ClipTensorsPerExample(2.0), ScaledRows(groups=[[name] for name in NAMES], max_norms=[1.0] * 4)),
    (defenses.DPSGD(clip_norm=2.0, noise_std=0.1, noise="sum"), ScaledRows(groups=[NAMES], max_norms=[2.0])),
    (defenses.Prune(0.5), Thinned(groups=[NAMES])),
    (defenses.Prune(0.5, by="layer"), Thinned(groups=[NAMES[:2], NAMES[2:]])),
    (defenses.TopK(0.5, by="tensor"), Thinned(groups=[[name] for name in NAMES])),
    (defenses.Quantize(bits=4), Rounded()),
    (defenses.Quantize(bits=4, stochastic=False), Rounded()),
    (defenses.SpectralNoise(norm=0.3, directions=2), MovedAlong(norm=0.3, directions=2, dense_limit=4096)),
    (defenses.Sign(), None),
    (defenses.Soteria(layer="2"), None),
    (defenses.Outpost(), None),
    (defenses.RandomSparsify(0.5), None),
    (defenses.VariationalBottleneck(), None),
]


@pytest.mark.parametrize(("defense", "effect"), ANSWERS, ids=lambda value: repr(value)[:40])
def test_each_defense_says_what_it_leaves_of_an_update(defense: Defense, effect: object) -> None:
    found = defense.effect(NAMES)
    assert found == effect or (isinstance(effect, MovedAlong) and isinstance(found, MovedAlong))
    assert (found is None) == (effect is None)


def test_the_law_of_laplace_noise_has_its_scale_and_no_std() -> None:
    law = defenses.LaplaceNoise(scale=0.25).noise({"w": torch.zeros(2)})
    assert isinstance(law, Laplace)
    assert isinstance(law, NotGaussian)
    assert law.scale == 0.25
    loss = objective()
    release = Release(FedSGD(), [defenses.Clip(1.0), defenses.LaplaceNoise(scale=0.25)])
    assert laplace_scale(release, loss.params) == 0.25
    below = Release(FedSGD(), [defenses.GaussianNoise(std=0.1), defenses.LaplaceNoise(scale=0.25)])
    assert laplace_scale(below, loss.params) is None


def test_false_answers_break_the_contract() -> None:
    @dataclass(frozen=True, kw_only=True)
    class InOrder(StrangeNoise):
        """Says that its draws are in order."""

        adds_in_order: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Halved(StrangeNoise):
        """Says that it leaves everything."""

        def mean(self, update: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor / 2 for name, tensor in update.items()}

        def draw(self, update: Mapping[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
            return super().draw(self.mean(update), generator)

        def effect(self, names: object) -> Unchanged:
            return Unchanged()

    @dataclass(frozen=True, kw_only=True)
    class Summed(StrangeRows):
        """Says that its average is a mean."""

        def divisor(self, examples: int) -> float:
            return examples

    for defense, promise in (
        (InOrder(), "tensor after tensor"),
        (Halved(), "leaves of an update"),
        (Summed(), "divisor"),
    ):
        with pytest.raises(AssertionError, match=promise):
            check_defense(defense)


@dataclass(frozen=True, kw_only=True)
class StrangeProtocol(Protocol):
    """Twice the gradient, by an author who answers no question."""

    kind: ClassVar[UpdateKind] = UpdateKind.GRADIENT

    def mean(
        self,
        objective: Objective,
        params: Mapping[str, Tensor],
        batch: Batch,
        defenses: Sequence[ExampleDefense] = (),
    ) -> dict[str, Tensor]:
        found = mean_gradient(objective, params, batch, defenses)
        return {name: 2 * tensor for name, tensor in found.items()}


@pytest.mark.parametrize(
    "chain",
    [
        [defenses.DPSGD(clip_norm=1.0, noise_std=0.1, noise="sum")],
        [defenses.ClipPerExample(1.0), defenses.GaussianNoise(std=0.1)],
    ],
    ids=["DP-SGD", "clip and noise"],
)
@pytest.mark.parametrize(
    "protocol",
    [StrangeProtocol(), SecureAggregation(protocol=StrangeProtocol(), examples=[2, 2])],
    ids=["alone", "aggregated"],
)
def test_accounting_counts_nothing_for_a_strange_protocol_and_names_it(
    protocol: Protocol, chain: list[Defense]
) -> None:
    assert protocol.course(4) is None
    found = mechanism_of(Release(protocol, chain), objective(), 4)
    assert isinstance(found, NoGuarantee)
    assert "StrangeProtocol" in found.reason


@pytest.mark.parametrize("examples", [1, 5])
def test_protocols_say_which_gradients_they_take(examples: int) -> None:
    assert FedSGD().course(examples) == Course(epochs=1, sizes=[examples], whole=True, sums=[(examples, 1.0)])
    local = FedAvg(learning_rate=0.1, epochs=2, batch_size=2).course(5)
    assert local == Course(epochs=2, sizes=[2, 2, 1], whole=False, sums=None)
    assert FedAvg(learning_rate=0.1).course(examples).sums == [(examples, 0.1)]
    assert LocalAdam().course(examples) == Course(epochs=1, sizes=[examples], whole=True, sums=None)
    together = SecureAggregation(protocol=FedSGD(), examples=[1, 3])
    assert together.course(4) == Course(epochs=1, sizes=[1, 3], whole=False, sums=[(1, 0.25), (3, 0.75)])
    assert together.client_sizes == (1, 3)
    assert FedSGD().client_sizes is None
    assert (together.of_client, FedSGD().of_client) == (FedSGD(), FedSGD())


ROOMS = {"defenses": Defense, "protocols": Protocol, "attacks": Attack, "risk": LayerMeasure}


def _concrete(room: str) -> frozenset[str]:
    """The names of the classes of a room that can be made: defenses, protocols, attacks, or measures of risk."""
    module = importlib.import_module(f"gradleak.{room}")
    return frozenset(
        name
        for name in module.__all__
        if inspect.isclass(found := getattr(module, name))
        and issubclass(found, ROOMS[room])
        and not inspect.isabstract(found)
    )


@cache
def _trees() -> dict[Path, ast.AST]:
    """The syntax trees of the package by file."""
    files = sorted(SOURCE.rglob("*.py"))
    return {file.relative_to(SOURCE): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def _named(node: ast.AST | None) -> Iterator[str]:
    """The names that an expression or a pattern mentions, of classes mostly."""
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _is_type_of(node: ast.AST) -> bool:
    """`type(x)`, `x.__class__` or the `__name__` of one."""
    if isinstance(node, ast.Attribute) and node.attr in ("__name__", "__qualname__"):
        node = node.value
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"
    return called or (isinstance(node, ast.Attribute) and node.attr == "__class__")


def switches(tree: ast.AST, classes: frozenset[str]) -> list[int]:
    """Lines that ask whether something is one of these classes: isinstance, issubclass, match, or a compared type.

    A module's tuple or union of them is found, too, wherever a check of a type uses it.
    """
    groups = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and not isinstance(node.value, ast.Call | ast.Dict)
        for target in node.targets
        if isinstance(target, ast.Name) and set(_named(node.value)) & classes
    }
    asked = classes | groups
    found = []
    for node in ast.walk(tree):
        names: set[str] = set()
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("isinstance", "issubclass")
        ):
            names = set(_named(node.args[-1]))
        elif isinstance(node, ast.MatchClass):
            names = set(_named(node.cls))
        elif isinstance(node, ast.Compare) and any(_is_type_of(part) for part in (node.left, *node.comparators)):
            names = {name for part in (node.left, *node.comparators) for name in _named(part)}
        if names & asked:
            found.append(node.lineno)
    return sorted(set(found))


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(d, Clip)",
        "isinstance(d, DPSGD | Other)",
        "isinstance(d, (Other, defenses.Prune))",
        "type(d) is Clip",
        "type(d) in (Clip, Sign)",
        "type(d).__name__ == 'Clip'",
        "d.__class__ is not Clip",
        "match d:\n    case Clip(): pass",
        "KNOWN = (Clip, Sign)\nisinstance(d, KNOWN)",
    ],
)
def test_switches_are_found(line: str) -> None:
    assert switches(ast.parse(line), _concrete("defenses"))


@pytest.mark.parametrize("line", ["Clip(1.0)", "isinstance(d, UpdateDefense)", "type(d) is Other", "'Clip' in names"])
def test_other_uses_are_not(line: str) -> None:
    assert switches(ast.parse(line), _concrete("defenses")) == []


@pytest.mark.parametrize(("room", "least"), [("defenses", 13), ("protocols", 4), ("attacks", 8), ("risk", 15)])
def test_nobody_outside_of_a_room_asks_for_the_type_of_one(room: str, least: int) -> None:
    files = {file: tree for file, tree in _trees().items() if room not in file.parts}
    assert len(files) > 100
    classes = _concrete(room)
    assert len(classes) >= least
    found = {str(file): lines for file, tree in files.items() if (lines := switches(tree, classes))}
    assert found == {}, f"ask it: see the methods of {ROOMS[room].__name__} that have a default"
