"""Study: cost of each defense in utility, and what it hides from attackers who know it and who do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar

import torch
from torch import nn

from gradleak.accounting import guarantee_of
from gradleak.attacks import Attack, GaussNewton, InvertingGradients
from gradleak.audits.utility import Adversary, Curve, Point, ReconstructionProbe, Setting, privacy_utility_curve
from gradleak.core import Batch, Defense, Guarantee, HonestButCurious, Release, derive_generator, derive_seed, describe
from gradleak.datasets import adult_census, mnist_digits, scikit_digits
from gradleak.defenses import DPSGD, Clip, GaussianNoise, Prune, Sign, VariationalBottleneck
from gradleak.models import lenet_dlg, mlp
from gradleak.protocols import FedSGD
from gradleak.reporting.pages.utility.curve import curve_figure
from gradleak.results import LI_2024, ZHANG_2023, Citation, Outcome, Score
from gradleak.training import PerturbedRounds, Task, Training, split
from studies.study import Finding, Say, Study, StudyResult, Table

STATIC, ADAPTIVE = "static", "adaptive"


class UtilityData(StrEnum):
    """Real data on which a model is trained."""

    DIGITS = "digits"
    MNIST = "mnist"
    ADULT = "adult"


class Family(StrEnum):
    """Defense that is turned up."""

    GAUSSIAN_NOISE = "gaussian_noise"
    CLIP = "clip"
    PRUNE = "prune"
    SIGN = "sign"
    ADVERSARIAL = "adversarial"
    BOTTLENECK = "bottleneck"
    DP_SGD_PAPER = "dp_sgd_paper"
    DP_SGD = "dp_sgd"


class ProbeAttack(StrEnum):
    """Attack that stands for the attacker beside the predictions."""

    NONE = "none"
    GAUSS_NEWTON = "gauss_newton"
    INVERTING_GRADIENTS = "inverting_gradients"


# The parameters of appendix A.2, and further ones where it has none. Of the adversarial perturbation γ; α follows there.
VALUES: Mapping[Family, tuple[float, ...]] = {
    Family.GAUSSIAN_NOISE: (1e-3, 1e-2, 1e-1, 1.0),
    Family.CLIP: (0.1, 1.0),
    Family.PRUNE: (0.9, 0.95, 0.99),
    Family.SIGN: (1.0,),
    Family.ADVERSARIAL: (5e-4, 1e-3, 5e-3),
    Family.BOTTLENECK: (1e-3, 1e-2, 1e-1),
    Family.DP_SGD_PAPER: (0.01, 0.02, 0.1),
    Family.DP_SGD: (0.5, 1.0, 4.0),
}
ALPHA: Mapping[float, float] = {5e-4: 2e-4, 1e-3: 3e-4, 5e-3: 2e-3}
WORDS: Mapping[Family, tuple[str, str]] = {
    Family.GAUSSIAN_NOISE: ("Gaussian noise", "std"),
    Family.CLIP: ("clipped update", "norm"),
    Family.PRUNE: ("pruning", "ratio"),
    Family.SIGN: ("sign", ""),
    Family.ADVERSARIAL: ("adversarial perturbation", "gamma"),
    Family.BOTTLENECK: ("bottleneck", "beta"),
    Family.DP_SGD_PAPER: ("DP-SGD, noise per example", "std"),
    Family.DP_SGD: ("DP-SGD, Poisson, noise on the sum", "noise multiplier"),
}


@dataclass(frozen=True, kw_only=True)
class PrivacyUtility(Study):
    """Utility on held-out rows against the error of static and adaptive attackers, one point a setting of a defense.

    Models are trained federatedly through each defense (`gradleak.training`), with the learning rate that does best on rows
    held back from training. Privacy is the pixel RMSE of the L2 attacker on single examples, at the first weights: in closed
    form for the noise drawn, and reached by an attack, each static (the defense is not known) and adaptive. A model that is
    no better than an answer that ignores its input earns its defense no credit, whatever it hides.

    **Source**: Li et al. 2024, figure 7, with the parameters of appendix A.2. Deviations: the attacker reconstructs examples
    where theirs infers a property, more defenses, and the digits beside Adult; 16 rows a batch on Adult as theirs, and the
    learning rate chosen by defense where theirs is 0.01 for all.

    Attributes:
        data: "digits" (a perceptron with 32 hidden units), "mnist" (LeNet) or "adult" (a perceptron 32-16, AUROC).
        families: which defenses.
        values: parameters in place of those of appendix A.2, for every family; empty for those.
        rows: rows in all.
        test_rows: how many of them are held out.
        public_rows: how many further ones are public: the adversarial perturbation learns from them, nothing else does.
        rounds: of the training.
        batch_size: rows a round.
        clients: that the rows are dealt to.
        learning_rates: of the server, to choose from.
        seeds: how many trainings a setting.
        delta: of the epsilons.
        examples: how many the attacker goes for; 0 for no privacy numbers.
        attack: beside the closed form.
        attack_iterations: its budget.
        seed: of the split, the examples and everything else.
    """

    name: ClassVar[str] = "privacy_utility"
    source: ClassVar[str] = "figure 7"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024, ZHANG_2023)

    data: UtilityData = UtilityData.DIGITS
    families: Sequence[Family] = tuple(Family)
    values: Sequence[float] = ()
    rows: int = 1797
    test_rows: int = 400
    public_rows: int = 200
    rounds: int = 200
    batch_size: int = 64
    clients: int = 1
    learning_rates: Sequence[float] = (0.01, 0.1, 1.0)
    seeds: int = 3
    delta: float = 1e-5
    examples: int = 4
    attack: ProbeAttack = ProbeAttack.GAUSS_NEWTON
    attack_iterations: int = 20
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about ten minutes of one core for the digits."""
        task, public = self._task()
        curve = privacy_utility_curve(
            task,
            self._training(),
            self._settings(task, public),
            probe=self._probe(task) if self.examples else None,
            seeds=[derive_seed(self.seed, "training", str(number)) for number in range(self.seeds)],
            learning_rates=self.learning_rates,
            say=say,
        )
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[_finding(point) for point in curve.every],
            conclusion=_conclude(curve),
            details={"points": [point.summary().to_dict() for point in curve.every]},
            tables=[_privacy_table(curve), _defense_table(curve)] if self.examples else [_defense_table(curve)],
            figures=_figures(curve),
        )

    def _task(self) -> tuple[Task, Batch]:
        draws: dict[UtilityData, Callable[..., Batch]] = {
            UtilityData.DIGITS: scikit_digits,
            UtilityData.MNIST: mnist_digits,
            UtilityData.ADULT: adult_census,
        }
        data = draws[UtilityData(self.data)](count=self.rows, seed=self.seed)
        if data.sensitive is None:
            # Of digits the parity stands for the variable that is to be hidden.
            data = replace(data, sensitive=data.targets % 2)
        generator = derive_generator(self.seed, "split")
        rest, test = split(data, test_rows=self.test_rows, generator=generator)
        train, public = split(rest, test_rows=self.public_rows, generator=generator)
        return Task(name=UtilityData(self.data).value, train=train, test=test, make_model=self._model()), public

    def _model(self) -> Callable[[torch.Generator], nn.Module]:
        match UtilityData(self.data):
            case UtilityData.DIGITS:
                return lambda generator: nn.Sequential(
                    nn.Flatten(), mlp(features=64, hidden=(32,), classes=10, activation="tanh", generator=generator)
                )
            case UtilityData.MNIST:
                return lambda generator: lenet_dlg(channels=1, size=28, activation="tanh", generator=generator)
            case UtilityData.ADULT:
                return lambda generator: mlp(
                    features=65, hidden=(32, 16), classes=2, activation="tanh", generator=generator
                )

    def _with_bottleneck(self, task: Task, defense: VariationalBottleneck) -> Task:
        """The same model with the bottleneck before its last layer."""

        def model(generator: torch.Generator) -> nn.Module:
            *parts, last = _layers(self._model()(generator))
            assert isinstance(last, nn.Linear)
            decoder = nn.Linear(defense.width, last.out_features)
            return defense.insert(nn.Sequential(*parts), decoder, features=last.in_features, generator=generator)

        return replace(task, make_model=model, loss=defense.loss(), mode="train")

    def _training(self) -> Training:
        return Training(
            rounds=self.rounds,
            learning_rate=self.learning_rates[0],
            batch_size=self.batch_size,
            clients=self.clients,
            delta=self.delta,
        )

    def _probe(self, task: Task) -> ReconstructionProbe:
        places = torch.arange(self.examples)
        private = Batch(task.train.inputs[places], task.train.targets[places], task.train.domain)
        if task.train.sensitive is not None:
            private = replace(private, sensitive=task.train.sensitive[places])
        attacks: Mapping[ProbeAttack, Attack | None] = {
            ProbeAttack.NONE: None,
            ProbeAttack.GAUSS_NEWTON: GaussNewton(max_steps=self.attack_iterations, starts=2),
            ProbeAttack.INVERTING_GRADIENTS: InvertingGradients(iterations=self.attack_iterations, restarts=2),
        }
        attack = attacks[ProbeAttack(self.attack)]
        told = {STATIC: False, ADAPTIVE: True}
        return ReconstructionProbe(
            batch=private,
            adversaries=[
                Adversary(name=name, attack=attack, threat=HonestButCurious(defenses=known, targets=True))
                for name, known in told.items()
            ]
            if attack is not None
            else (),
            seed=self.seed,
        )

    def _settings(self, task: Task, public: Batch) -> list[Setting]:
        return [
            self._setting(task, public, Family(family), value)
            for family in self.families
            for value in (self.values or VALUES[Family(family)])
        ]

    def _setting(self, task: Task, public: Batch, family: Family, value: float) -> Setting:
        named, parameter = WORDS[family]
        label = f"{parameter} {value:g}" if parameter else named
        if family is Family.ADVERSARIAL:
            rounds = PerturbedRounds(
                public=public, batch_size=self.batch_size, gamma=value, alpha=ALPHA.get(value, 0.4 * value)
            )
            return Setting(family=named, label=label, release=rounds)
        if family is Family.BOTTLENECK:
            bottleneck = VariationalBottleneck(beta=value, width=16)
            release = Release(FedSGD(), [bottleneck])
            return Setting(family=named, label=label, release=release, task=self._with_bottleneck(task, bottleneck))
        training = None
        if family is Family.DP_SGD:
            rate = self.batch_size * self.clients / task.train.size
            training = replace(self._training(), batch_size=None, sampling_rate=rate)
        return Setting(
            family=named,
            label=label,
            release=Release(FedSGD(), [defense_of(family, value, self.batch_size)]),
            training=training,
        )


def defense_of(family: Family, value: float, batch_size: int) -> Defense:
    """A defense that needs neither public rows nor a model of its own.

    Args:
        family: all but the adversarial perturbation and the bottleneck.
        value: its parameter.
        batch_size: rows a batch, as DP-SGD with noise on the sum expects them.
    """
    match family:
        case Family.GAUSSIAN_NOISE:
            return GaussianNoise(std=value)
        case Family.CLIP:
            return Clip(value)
        case Family.PRUNE:
            return Prune(value)
        case Family.SIGN:
            return Sign()
        case Family.DP_SGD_PAPER:
            return DPSGD(clip_norm=2.0, noise_std=value, noise="per_example")
        case _:
            return DPSGD.from_noise_multiplier(value, clip_norm=1.0, expected_batch_size=batch_size)


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers of nested rows of layers."""
    if not isinstance(model, nn.Sequential):
        return [model]
    return [layer for part in model for layer in _layers(part)]


def _finding(point: Point) -> Finding:
    score = point.utility.score
    epsilon = point.utility.epsilon
    of_epsilon = "none" if epsilon.value is None else f"{epsilon.value:.3g}"
    return Finding(
        quantity=f"{_where(point)}: {score.name.replace('_', ' ')}",
        ours=score.value,
        interval=score.interval,
        n=score.n,
        note="; ".join(
            filter(
                None,
                [
                    f"η = {point.learning_rate:g}, epsilon {of_epsilon}",
                    "" if score.outcome is Outcome.CONVERGED else f"{score.outcome.label}: {score.note}",
                    "" if point.credit else "no better than an answer that ignores the input: no credit",
                ],
            )
        ),
    )


def _where(point: Point) -> str:
    family, label = point.setting.family, point.setting.label
    return label if label.startswith(family) else f"{family}, {label}"


def _privacy_table(curve: Curve) -> Table:
    names = [score.name for score in curve.undefended.privacy]
    return Table(
        title="Pixel RMSE that an attacker is left with, median over the examples",
        columns=["setting", *(name.replace("_", " ") for name in names), "credit"],
        rows=[
            [_where(point), *(_cell(score) for score in point.privacy), point.utility.standing.value.replace("_", " ")]
            for point in curve.every
        ],
    )


def _cell(score: Score) -> str:
    return score.outcome.label if score.value is None else f"{score.value:.3g}"


def _defense_table(curve: Curve) -> Table:
    def row(point: Point) -> list[str]:
        close, epsilon = point.utility.closeness, point.utility.epsilon
        return [
            _where(point),
            _guarantee(point),
            "-" if close is None else f"{close.kept_share:.3f}",
            "-" if close is None or close.cosine is None else f"{close.cosine:.3f}",
            "none" if epsilon.value is None else f"{epsilon.value:.3g}",
            "; ".join(f"{layer.name}: {layer.was} to {layer.now}" for layer in point.utility.replaced) or "none",
        ]

    columns = [
        "setting",
        "guarantee",
        "kept share",
        "cosine to the true update",
        "epsilon of the training",
        "layers replaced",
    ]
    return Table(
        title=f"What is sent, and its epsilon (of {curve.settings_tried} settings tried: no epsilon covers a choice among them)",
        columns=columns,
        rows=[row(point) for point in curve.every],
    )


def _guarantee(point: Point) -> str:
    """Promise of the release of a training; "-" without defenses."""
    release, runs = point.setting.release, point.utility.runs
    if not isinstance(release, Release) or not runs:
        # Made anew every round from the batch, or refused by the model.
        return Guarantee.HEURISTIC.value
    return guarantee_of(release, runs[0].objective, max(1, point.utility.examples)) or "-"


def _figures(curve: Curve) -> dict[str, str]:
    """Utility against what each attacker reaches, or is predicted to where none was run."""
    svg = curve_figure(curve.summary())
    return {"privacy_utility": svg} if svg else {}


def _conclude(curve: Curve) -> list[str]:
    """Conclusions: the cost of each defense at its settings, which of them hide something, and which earn no credit."""
    plain = curve.undefended.utility.score
    lines = []
    if plain.value is not None:
        lines.append(
            f"Undefended: {plain.name.replace('_', ' ')} {plain.value:.4f} at η = {curve.undefended.learning_rate:g}."
        )
    for point in curve.points:
        value = point.utility.score.value
        if value is None or plain.value is None:
            lines.append(f"{_where(point)}: {point.utility.score.outcome.label} ({point.utility.score.note}).")
            continue
        parts = [f"costs {plain.value - value:+.4f}"]
        parts += [
            f"{who} attacker at {score.value:.3g}"
            for who in (STATIC, ADAPTIVE)
            if (score := point.score(f"reached_{who}") or point.score(f"predicted_{who}")) and score.value is not None
        ]
        if not point.credit:
            parts.append("no credit")
        lines.append(f"{_where(point)}: {', '.join(parts)}.")
    return lines


__all__ = ["ALPHA", "VALUES", "WORDS", "Family", "PrivacyUtility", "ProbeAttack", "UtilityData", "defense_of"]
