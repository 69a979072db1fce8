"""The papers' attacks: their settings, and that they find what they ought to."""

from __future__ import annotations

import math
from dataclasses import fields, make_dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from gradleak.attacks import (
    DGL,
    DLG,
    GGL,
    GIAS,
    GS,
    IDLG,
    IGIMS,
    LBFGS,
    Adam,
    BatchNormInversion,
    BatchNormStatistics,
    CosineDecay,
    CosineDistance,
    GradInversion,
    GroupConsistency,
    IGIMSAdam,
    Inversion,
    InvertingGradients,
    LabelPolicy,
    MeanSquare,
    NoRegistration,
    SquaredError,
    Start,
    Statistics,
    StepDecay,
    TotalVariation,
    Translation,
    UntrainedGenerator,
)
from gradleak.attacks.inversion.engine import Preset
from gradleak.core import Batch, HonestButCurious, Objective, Reconstruction, Release
from gradleak.models import linear_model
from gradleak.protocols import FedSGD
from gradleak.results import InputError, KnowledgeError, Outcome, UnsupportedError
from gradleak.results.settings import annotation, check_of
from tests.attacks.setting import DIGIT, lenet, rows, setting, small_net

PRESETS: tuple[type[Preset], ...] = (
    DGL, DLG, GGL, GIAS, GS, IGIMS, BatchNormInversion, GradInversion, IDLG, IGIMSAdam, InvertingGradients, UntrainedGenerator,
)  # fmt: skip


def _generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_settings_of_inverting_gradients() -> None:
    composed = InvertingGradients().compose()
    (stage,) = composed.stages
    assert isinstance(composed.matching, CosineDistance)
    assert stage.iterations == 4000
    assert stage.optimizer == Adam(learning_rate=0.1, signed=True, schedule=StepDecay())
    assert composed.variables.box
    assert [prior.weight for prior in composed.priors] == [1e-3]


def test_the_settings_of_dlg() -> None:
    composed = DLG().compose()
    (stage,) = composed.stages
    assert isinstance(composed.matching, SquaredError)
    assert stage.optimizer == LBFGS(learning_rate=1.0, history=100, inner_steps=20)
    assert stage.iterations == 300
    assert not composed.variables.box
    assert composed.variables.start is Start.NORMAL
    assert not composed.priors


def test_the_settings_of_the_influence_papers_two_attacks() -> None:
    dgl, gs = DGL().compose(), GS().compose()
    assert dgl.stages[0].optimizer == Adam(learning_rate=0.1)
    assert gs.stages[0].optimizer == Adam(learning_rate=0.1, signed=True, schedule=StepDecay())
    assert (dgl.matching, gs.matching) == (SquaredError(), CosineDistance())
    assert (dgl.variables.box, gs.variables.box) == (False, True)
    assert dgl.variables.start is gs.variables.start is Start.NORMAL
    assert dgl.priors == ()
    assert gs.priors == (BatchNormStatistics(weight=1e-3, statistics=Statistics.RUNNING),)
    assert DGL(batch_norm=0.2, total_variation=0.3).compose().priors == (
        TotalVariation(weight=0.3),
        BatchNormStatistics(weight=0.2),
    )


def test_the_settings_of_idlg_are_those_of_dlg_with_the_label_first() -> None:
    dlg, idlg = DLG().compose(), IDLG().compose()
    assert idlg.stages == dlg.stages
    assert (idlg.matching, idlg.variables, idlg.priors) == (dlg.matching, dlg.variables, dlg.priors)
    assert (dlg.labels, idlg.labels) == (LabelPolicy.OPTIMIZE, LabelPolicy.RECOVER)


def test_the_settings_of_grad_inversion() -> None:
    composed = GradInversion().compose()
    (stage,) = composed.stages
    assert stage.iterations == 20_000
    assert stage.optimizer == Adam(learning_rate=0.1, schedule=CosineDecay(warm_up=50 / 20_000), noise=0.2)
    assert composed.restarts == 8
    assert composed.priors == (
        TotalVariation(weight=1e-4),
        MeanSquare(weight=1e-6),
        BatchNormStatistics(weight=0.1),
        GroupConsistency(weight=0.01, registration=Translation()),
    )
    short = GradInversion(iterations=20, consistency=0.0, registration=NoRegistration()).compose()
    assert short.stages[0].optimizer.schedule == CosineDecay(warm_up=0.25)
    assert not any(isinstance(prior, GroupConsistency) for prior in short.priors)
    assert GradInversion(warm_up=0).compose().stages[0].optimizer.schedule == CosineDecay(warm_up=0.0)
    with pytest.raises(InputError, match="warm_up"):
        GradInversion(warm_up=-1)
    with pytest.raises(InputError, match="at least 0"):
        GradInversion(batch_norm=-0.1)


@pytest.mark.parametrize(
    ("case", "smooth", "weight"), [("running", 0.05, 1e-3), ("inferred", 0.05, 0.0), ("known", 0.1, 5e-3)]
)
def test_the_settings_of_the_three_cases_of_batch_norm_inversion(case: str, smooth: float, weight: float) -> None:
    composed = BatchNormInversion(statistics=case).compose()
    assert composed.stages[0].optimizer == Adam(learning_rate=0.1, signed=True, schedule=StepDecay())
    assert composed.stages[0].iterations == 10_000
    assert composed.priors[0] == TotalVariation(weight=smooth)
    assert composed.priors[1:] == ((BatchNormStatistics(weight=weight, statistics=case),) if weight else ())
    given = BatchNormInversion(statistics=case, total_variation=0.0, batch_norm=None if case == "inferred" else 2.0)
    assert [prior.weight for prior in given.compose().priors] == ([] if case == "inferred" else [2.0])
    with pytest.raises(InputError, match="got 'inferred'"):
        BatchNormInversion(statistics="inferred", batch_norm=1.0)
    with pytest.raises(InputError, match="expected one of running"):
        BatchNormInversion(statistics="exact")


@pytest.mark.parametrize("attack", [DGL(), GS()])
def test_labels_that_the_paper_gives_have_to_be_disclosed(attack: DGL | GS) -> None:
    case = setting(small_net(), rows(1))
    with pytest.raises(KnowledgeError, match=f"{attack.name} needs targets"):
        attack(case.update, case.knowledge, generator=_generator())


@pytest.mark.parametrize(
    ("attack", "error"),
    [
        (DGL(iterations=200, learning_rate=0.05), 1e-3),
        (GS(iterations=100), 1e-3),
        (IDLG(iterations=15, restarts=3, restart_after=10), 1e-6),
        (GradInversion(iterations=150, restarts=2, noise=0.05), 1e-2),
        (BatchNormInversion(iterations=100), 1e-3),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_row_is_found(attack: Inversion, error: float) -> None:
    case = setting(small_net("sigmoid"), rows(2), threat=HonestButCurious(targets=isinstance(attack, DGL | GS)))
    found = attack(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < error
    assert found.targets.tolist() == [2]
    assert found.details["labels"] == ("disclosed" if isinstance(attack, DGL | GS) else "recovered")


def test_where_no_label_can_be_read_off_idlg_is_dlg_and_says_so() -> None:
    # What follows the last layer changes its result, so that its gradient no longer says which class it was.
    case = setting(nn.Sequential(small_net("sigmoid"), nn.Hardtanh(-50.0, 50.0)), rows(2))
    found = IDLG(iterations=1)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert "labels were optimized together with the inputs" in found.note


class Normalized(nn.Module):
    """Linear layers with a BatchNorm between them, whose memory is not that of a fresh model."""

    def __init__(self) -> None:
        super().__init__()
        generator = _generator(7)
        self.first, self.norm, self.last = nn.Linear(12, 10), nn.BatchNorm1d(10), nn.Linear(10, 3)
        for parameter in self.parameters():
            parameter.data.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        self.norm.running_mean.copy_(0.3 * torch.randn(10, generator=generator))
        self.norm.running_var.copy_(torch.rand(10, generator=generator) + 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


def _batch_norm(case: Statistics, mode: str, *, disclosed: bool = True) -> tuple[Reconstruction, float]:
    """What the attack claims about a batch of three in this mode, and its pixel error in the best order."""
    objective = Objective.from_module(Normalized(), mode=mode).to(torch.float64)
    truth, release = rows(0, 1, 2).to(torch.float64), Release(FedSGD())
    update = release(objective, truth, _generator())
    threat = HonestButCurious(targets=True, statistics=disclosed)
    knowledge = threat.disclose(objective, release, truth)
    attack = BatchNormInversion(statistics=case, iterations=250, total_variation=0.0)
    found = attack(update, knowledge, generator=_generator())
    return found, float((found.inputs - truth.inputs).square().mean())


def test_the_three_cases_of_a_client_that_normalizes_by_its_batch() -> None:
    claims = {case: _batch_norm(case, "train") for case in Statistics}
    for case, words in (
        (Statistics.RUNNING, "prior: BatchNorm statistics that the model remembers, weight 0.001"),
        (Statistics.KNOWN, "prior: BatchNorm statistics of the private batch, disclosed, weight 0.005"),
    ):
        assert words in claims[case][0].details["information"]
    assert "were disclosed to the attack" in claims[Statistics.KNOWN][0].note
    assert not any("BatchNorm" in text for text in claims[Statistics.INFERRED][0].details["information"])
    # Train mode forgets the mean of each feature, so that the truth helps more than what the model remembers.
    assert claims[Statistics.KNOWN][1] < claims[Statistics.RUNNING][1]
    assert claims[Statistics.KNOWN][1] < claims[Statistics.INFERRED][1]


def test_cases_that_do_not_apply_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="expected a client in train mode"):
        _batch_norm(Statistics.INFERRED, "eval")
    with pytest.raises(KnowledgeError, match="which the threat model does not disclose"):
        _batch_norm(Statistics.KNOWN, "eval", disclosed=False)


def test_inverting_gradients_finds_any_image_behind_the_linear_model() -> None:
    for seed in range(3):
        # Noise is the worst case for a smoothness prior.
        image = torch.rand(1, 1, 28, 28, generator=_generator(seed))
        truth = Batch(image, torch.tensor([seed]), DIGIT)
        case = setting(linear_model(features=784, classes=10), truth, dtype=torch.float32)
        found = InvertingGradients(iterations=300)(case.update, case.knowledge, generator=_generator())
        assert found.targets.tolist() == [seed]
        # Far below the threshold of a leak, a pixel RMSE of 0.1, on which the positive control rests.
        assert case.error(found.inputs) < 5e-4
        assert case.error(found.inputs) < 0.01 * case.error(torch.full_like(image, 0.5))


def test_dlg_finds_a_row_and_its_label_together() -> None:
    case = setting(small_net("sigmoid"), rows(2))
    found = DLG(iterations=20, restarts=3)(case.update, case.knowledge, generator=_generator())
    assert found.details["labels"] == "optimized"
    assert int(found.targets.argmax()) == 2
    assert case.error(found.inputs) < 1e-6
    assert found.outcome in (Outcome.CONVERGED, Outcome.BUDGET_SPENT)


def test_dlg_without_a_line_search_may_diverge_and_still_returns_its_best() -> None:
    case = setting(small_net("sigmoid"), rows(2))
    for seed in range(3):
        found = DLG(iterations=3)(case.update, case.knowledge, generator=_generator(seed))
        assert torch.isfinite(found.inputs).all()
        assert found.loss == min(found.history)


def test_the_estimate_is_the_cost_of_a_full_run() -> None:
    case = setting(small_net(), rows(2))
    attack = InvertingGradients(iterations=20, restarts=2)
    found = attack(case.update, case.knowledge, generator=_generator())
    assert found.plain_gradients == attack.estimate(case.knowledge) == 3 * 2 * 21


@pytest.mark.parametrize(
    ("name", "activation", "share"),
    [("lenet_sigmoid_uniform", "sigmoid", 0.5), ("lenet_relu_default", "relu", 0.25)],
)
def test_inverting_gradients_finds_a_digit_far_better_than_blind(
    shared: Path, name: str, activation: str, share: float
) -> None:
    model, truth = lenet(shared, name, activation)
    case = setting(model, truth, dtype=torch.float32)
    found = InvertingGradients(iterations=150)(case.update, case.knowledge, generator=_generator())
    assert case.error(found.inputs) < share * case.error(torch.full((1, 1, 28, 28), 0.5))


WHOLE = ("Count", "Natural", "Iterations", "Annotated[int,")


def _numbers() -> list[tuple[type[Preset], str, str]]:
    return [
        (preset, field.name, str(field.type))
        for preset in PRESETS
        for field in fields(preset)
        if "number" in check_of(annotation(preset, field.name)).words
    ]


@pytest.mark.parametrize(("preset", "name", "kind"), _numbers())
def test_senseless_numbers_are_named_as_the_user_wrote_them(preset: type[Preset], name: str, kind: str) -> None:
    """Not as the optimizer, the stage or the prior that they end up in, and never as a bare TypeError."""
    for value in (
        "3",
        -1,
        math.nan,
        math.inf,
        True,
        *([1.5] if kind.split()[0] in WHOLE else []),
        *([10**9] if kind == "Iterations" else []),
    ):
        with pytest.raises(InputError, match=rf"^{preset.__name__}\.{name}: expected .*got {value!r}"):
            preset(**{name: value})
    # None is a choice where the annotation says so, and may still be refused beside another setting.
    if "None" not in kind:
        with pytest.raises(InputError, match=rf"^{preset.__name__}\.{name}: "):
            preset(**{name: None})


def test_presets_of_users_are_checked_however_they_are_annotated() -> None:
    """Annotations are text in modules that postpone them, and types elsewhere."""
    mine = make_dataclass(
        "Mine", [("rounds", int, 3), ("rate", float, 0.1)], bases=(InvertingGradients,), frozen=True, kw_only=True
    )
    assert mine(rounds=np.int64(2), rate=np.float32(0.0)).compose() == InvertingGradients().compose()
    with pytest.raises(InputError, match=r"^Mine\.rounds: expected a whole number, got 'a'"):
        mine(rounds="a")
    with pytest.raises(InputError, match=r"^Mine\.learning_rate: expected a finite positive number, got '0.1'"):
        mine(learning_rate="0.1")
    for preset, name, bad in ((GGL, "population", 1), (IGIMS, "population", 1), (GGL, "tanh", "no")):
        with pytest.raises(InputError, match=rf"^{preset.__name__}\.{name}: expected"):
            preset(**{name: bad})
