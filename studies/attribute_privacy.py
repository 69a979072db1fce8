"""Study: epsilon that a release shows of one attribute, crafted against random records, measured against theory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats
from torch import nn

from gradleak.core import Release, describe, one_thread
from gradleak.datasets import adult_files_table, adult_table
from gradleak.defenses import DPSGD
from gradleak.models import mlp
from gradleak.privacy import AttributeAudit, AttributePair, AuditedPair, Canary, PairResult, Statistic, total_epsilons
from gradleak.privacy.lower_bounds import (
    CorrectedThresholdEpsilon,
    EpsilonEstimator,
    GaussianFitEpsilon,
    PlugInEpsilon,
    SplitThresholdEpsilon,
    TrialScores,
)
from gradleak.protocols import FedSGD
from gradleak.results import LI_2024, Citation, Score
from studies.attribute_privacy_figures import histograms, measured_against_theory
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import shown

# theory/ε̂ in units of N, by Δ and σ: section 7, figure 9.
PAPER: dict[tuple[float, float], float] = {(4.0, 0.1): 1.86, (1.5, 0.1): 1.14, (2.0, 0.08): 1.20, (2.0, 0.13): 1.33}
SPLIT, CORRECTED, FIT, PLUG_IN = range(4)


@dataclass(frozen=True, kw_only=True)
class AttributePrivacy(Study):
    """Histograms and epsilon of the per-attribute audit game on Adult, by clipping bound and noise.

    A perceptron with one hidden layer of 100, one record, its sex replaced under H1, DP-SGD with a clipping bound Δ and
    noise σ; at the random start and after ten epochs of training through the release. Beside the paper's statistic and
    its plug-in estimate stand the likelihood ratio, bounds that hold, and the exact per-attribute epsilon of each record.

    Over σ, the canaries and the trained parameters are those of `noise_std`: the canary does not depend on σ.

    **Source**: Li et al. 2024, section 7, figures 8 and 9, and appendix A.3. The paper says neither how the census is
    encoded, nor at which parameters, of which label, and with how many starts.

    Attributes:
        path: folder with the two files of UCI, of which all 14 attributes are inputs; None for the 12 that xai carries.
        clip_norms: Δ at `noise_std`.
        noise_stds: σ at `clip_norm`.
        clip_norm: Δ of figure 8.
        noise_std: σ of figure 8.
        delta: δ.
        trials: releases a hypothesis.
        more_trials: releases a hypothesis where so few are saturated.
        more_for: Δ of these.
        epochs: after how many epochs of training.
        private_rows: that train the model.
        iterations: of Adam for a canary.
        starts: of a canary.
        random_records: for the baseline.
        attributes: N.
        seed: everything derives from it.
    """

    name: ClassVar[str] = "attribute_privacy"
    source: ClassVar[str] = "figures 8 and 9"
    citations: ClassVar[tuple[Citation, ...]] = (LI_2024,)

    path: str | None = None
    clip_norms: Sequence[float] = (1.0, 1.5, 2.0, 3.0, 4.0)
    noise_stds: Sequence[float] = (0.08, 0.09, 0.1, 0.11, 0.12, 0.13)
    clip_norm: float = 2.0
    noise_std: float = 0.1
    delta: float = 1e-5
    trials: int = 5000
    more_trials: int = 100_000
    more_for: Sequence[float] = (3.0, 4.0)
    epochs: Sequence[int] = (0, 10)
    private_rows: int = 5000
    iterations: int = 2000
    starts: int = 4
    random_records: int = 5
    attributes: int = 14
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about five minutes of one core, of which nearly all is training and canaries."""
        rows: list[_Row] = []
        with one_thread():
            for clip in dict.fromkeys([*self.clip_norms, self.clip_norm]):
                audit = self._audit(clip)
                setup = audit.set_up(self.seed, say=say)
                for entry in setup.pairs:
                    rows.append(self._row(entry, clip, self.noise_std, self.trials))
                    if clip in self.more_for:
                        rows.append(self._row(entry, clip, self.noise_std, self.more_trials))
                    if clip == self.clip_norm:
                        rows += [
                            self._row(self._through(entry, clip, std), clip, std, self.trials)
                            for std in self.noise_stds
                            if std != self.noise_std
                        ]
                say(f"Δ = {clip:g}: {rows[-1].told}")
            if self.starts:
                start = replace(self._audit(self.clip_norm), valid=True, epochs=(min(self.epochs),))
                for entry in start.set_up(self.seed, say=say).pairs[:1]:
                    entry = replace(entry, name=f"valid {entry.name}")
                    rows.append(self._row(entry, self.clip_norm, self.noise_std, self.trials))
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for row in rows if row.is_canary for finding in row.findings()],
            conclusion=self._conclude(rows),
            details={"rows": [row.facts() for row in rows]},
            tables=[self._separation(rows), *(self._against(rows, epoch) for epoch in self.epochs)],
            figures=self._figures(rows),
        )

    def _audit(self, clip: float) -> AttributeAudit:
        table = adult_table() if self.path is None else adult_files_table(Path(self.path))
        target, attribute = ("loan", "gender") if self.path is None else ("income", "sex")
        features = table.inputs(without=[target])[0].shape[1]
        return AttributeAudit(
            table,
            target=target,
            attribute=attribute,
            model=_Perceptron(features=features),
            release=self._release(clip, self.noise_std),
            canary=Canary(iterations=self.iterations, starts=self.starts),
            random_records=self.random_records,
            attributes=self.attributes,
            epochs=self.epochs,
            private_rows=self.private_rows,
            trials=self.trials,
            delta=self.delta,
            estimators=self._estimators,
        )

    @property
    def _estimators(self) -> tuple[EpsilonEstimator, ...]:
        return (
            SplitThresholdEpsilon(delta=self.delta),
            CorrectedThresholdEpsilon(delta=self.delta),
            GaussianFitEpsilon(delta=self.delta),
            PlugInEpsilon(delta=self.delta),
        )

    def _release(self, clip: float, std: float) -> Release:
        return Release(FedSGD(), [DPSGD(clip_norm=clip, noise_std=std, noise="per_example")])

    def _through(self, entry: AuditedPair, clip: float, std: float) -> AuditedPair:
        """The same record at the same parameters, with other noise."""
        assert isinstance(entry.pair, AttributePair)
        pair = replace(entry.pair, release=self._release(clip, std))
        theory = total_epsilons(pair.release, pair.objective, examples=1, attributes=self.attributes, delta=self.delta)
        return replace(entry, pair=pair, theory=theory)

    def _row(self, entry: AuditedPair, clip: float, std: float, trials: int) -> _Row:
        found = entry.read(self._estimators, trials=trials, delta=self.delta, seed=self.seed)
        return _Row(clip=clip, std=std, attributes=self.attributes, found=found)

    def _separation(self, rows: Sequence[_Row]) -> Table:
        """Figure 8 in numbers."""
        columns = (
            "record", "‖g₁ - g₀‖", "exact ε", "AUROC by distance", "AUROC by likelihood ratio",
            "ε̂ by distance: plug-in", "bound", "Gaussian fit", "by likelihood ratio: bound", "Gaussian fit",
        )  # fmt: skip
        own = [row for row in rows if row.is_base(self.clip_norm, self.noise_std, self.trials)]
        cells = [
            [
                row.found.name,
                f"{row.distance:.3f}",
                shown(row.exact, ".4g"),
                f"{row.auroc(Statistic.DISTANCE):.4f}",
                f"{row.auroc(Statistic.LIKELIHOOD_RATIO):.4f}",
                _text(row.score(Statistic.DISTANCE, PLUG_IN)),
                _text(row.score(Statistic.DISTANCE, SPLIT)),
                _text(row.score(Statistic.DISTANCE, FIT)),
                _text(row.score(Statistic.LIKELIHOOD_RATIO, SPLIT)),
                _text(row.score(Statistic.LIKELIHOOD_RATIO, FIT)),
            ]
            for row in own
        ]
        title = f"Figure 8: Δ = {self.clip_norm:g}, noise {self.noise_std:g}, {self.trials} trials a hypothesis"
        return Table(title=title, columns=columns, rows=cells)

    def _against(self, rows: Sequence[_Row], epoch: int) -> Table:
        """Figure 9 in numbers, canaries of one epoch."""
        columns = (
            "Δ", "noise", "trials", "‖g₁ - g₀‖", "exact ε", "classical total / N", "exact total / N", "ε̂ by distance: plug-in",
            "(classical total/ε̂)/N", "paper", "bound by distance", "Gaussian fit", "bound by likelihood ratio", "Gaussian fit",
        )  # fmt: skip
        own = sorted(
            (row for row in rows if row.is_canary and row.found.facts["epoch"] == epoch and not row.is_valid),
            key=lambda row: (row.std != self.noise_std, row.clip, row.std, row.found.trials),
        )
        cells = [
            [
                f"{row.clip:g}",
                f"{row.std:g}",
                str(row.found.trials),
                f"{row.distance:.3f}",
                shown(row.exact, ".4g"),
                shown(row.found.known("classical_epsilon_share").value, ".4g"),
                shown(row.found.known("gaussian_epsilon_share").value, ".4g"),
                _text(row.score(Statistic.DISTANCE, PLUG_IN)),
                shown(row.ratio, ".4g"),
                shown(PAPER.get((row.clip, row.std)), ".4g"),
                _text(row.score(Statistic.DISTANCE, SPLIT)),
                _text(row.score(Statistic.DISTANCE, FIT)),
                _text(row.score(Statistic.LIKELIHOOD_RATIO, SPLIT)),
                _text(row.score(Statistic.LIKELIHOOD_RATIO, FIT)),
            ]
            for row in own
        ]
        return Table(title=f"Figure 9: canaries after {epoch} epochs, δ = {self.delta:g}", columns=columns, rows=cells)

    def _figures(self, rows: Sequence[_Row]) -> dict[str, str]:
        base = [row for row in rows if row.is_base(self.clip_norm, self.noise_std, self.trials)]
        drawn: dict[str, str] = {}
        for epoch in self.epochs:
            panels = {
                row.found.name: row.found.histograms[Statistic.DISTANCE]
                for row in base
                if row.found.facts["epoch"] == epoch and not row.is_valid
            }
            chosen = dict([next(iter(panels.items())), next(reversed(panels.items()))])
            drawn[f"attribute_privacy_figure_8_epoch_{epoch}"] = histograms(chosen)
            canaries = [row for row in rows if row.is_canary and row.found.facts["epoch"] == epoch and not row.is_valid]
            over_clip = [row.point(row.clip) for row in canaries if row.std == self.noise_std and self._most(row)]
            over_noise = [
                row.point(row.std) for row in canaries if row.clip == self.clip_norm and row.found.trials == self.trials
            ]
            drawn[f"attribute_privacy_figure_9_epoch_{epoch}"] = measured_against_theory(
                {f"Δ at noise {self.noise_std:g}": over_clip, f"noise at Δ = {self.clip_norm:g}": over_noise}
            )
        return drawn

    def _most(self, row: _Row) -> bool:
        """True if a row is the one of its clipping bound with most trials."""
        return row.found.trials == (self.more_trials if row.clip in self.more_for else self.trials)

    def _conclude(self, rows: Sequence[_Row]) -> list[str]:
        lines = []
        for epoch in self.epochs:
            base = [
                row
                for row in rows
                if row.is_base(self.clip_norm, self.noise_std, self.trials)
                and row.found.facts["epoch"] == epoch
                and not row.is_valid
            ]
            canary = next((row for row in base if row.is_canary), None)
            others = [row for row in base if not row.is_canary]
            if canary is None or not others:
                continue
            best = max(row.auroc(Statistic.DISTANCE) for row in others)
            own = canary.auroc(Statistic.DISTANCE)
            lines.append(
                f"epoch {epoch}: the distances of the canary's releases separate with an AUROC of {own:.3f}, those of "
                f"{len(others)} random records with at most {best:.3f}: a crafted record "
                f"{'tells more' if own > best else 'tells no more'}."
            )
            exact = canary.exact or math.nan
            total = canary.found.known("gaussian_epsilon").value or math.nan
            lines.append(
                f"epoch {epoch}: the exact per-attribute epsilon of the canary is {exact:.4g}, {exact / total:.2f} of the exact "
                f"total {total:.4g} and {exact / (total / self.attributes):.1f} times that total over {self.attributes}: the "
                "total divided by the number of attributes is no bound."
            )
        broken = [
            (row, score)
            for row in rows
            for scores in row.found.scores.values()
            for score in scores[:PLUG_IN]
            if score.value is not None and row.exact is not None and score.value > row.exact
        ]
        many = sum(3 * len(row.found.scores) for row in rows)
        lines.append(
            f"{len(broken)} of {many} lower bounds, at 95 % each, lie above the exact per-attribute epsilon of their record."
        )
        return lines


@dataclass(frozen=True, kw_only=True)
class _Perceptron:
    """Makes the perceptron of section 7."""

    features: int

    def __call__(self, generator: torch.Generator) -> nn.Module:
        return mlp(features=self.features, hidden=(100,), classes=2, activation="relu", generator=generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Row:
    """One record at one setting."""

    clip: float
    std: float
    attributes: int
    found: PairResult = field(repr=False)

    @property
    def is_canary(self) -> bool:
        return bool(self.found.facts["record"] == "canary")

    @property
    def is_valid(self) -> bool:
        return bool(self.found.facts.get("valid"))

    @property
    def distance(self) -> float:
        return float(max(self.found.facts["distances"]))

    @property
    def exact(self) -> float | None:
        return self.found.known("per_attribute_epsilon").value

    @property
    def ratio(self) -> float | None:
        """(theory/ε̂)/N, as the paper has it."""
        share = self.found.known("classical_epsilon_share").value
        estimate = self.score(Statistic.DISTANCE, PLUG_IN).value
        return share / estimate if share is not None and estimate else None

    @property
    def told(self) -> str:
        return f"{self.found.name}, distance {self.distance:.3f}, exact epsilon {shown(self.exact, '.4g')}"

    def is_base(self, clip: float, std: float, trials: int) -> bool:
        return (self.clip, self.std, self.found.trials) == (clip, std, trials)

    def score(self, statistic: Statistic, estimator: int) -> Score:
        return self.found.scores[statistic][estimator]

    def auroc(self, statistic: Statistic) -> float:
        return _auroc(self.found.samples[statistic])

    def point(self, x: float) -> dict[str, Any]:
        """Point of it that figure 9 draws."""
        by_distance = self.score(Statistic.DISTANCE, PLUG_IN)
        by_ratio = self.score(Statistic.LIKELIHOOD_RATIO, FIT)
        return {
            "x": x,
            "plug-in, distance": (by_distance.value, by_distance.interval),
            "bound, distance": (self.score(Statistic.DISTANCE, SPLIT).value, None),
            "Gaussian fit, likelihood ratio": (by_ratio.value, by_ratio.interval),
            "exact, this record": (self.exact, None),
            "classical total / N": (self.found.known("classical_epsilon_share").value, None),
        }

    def findings(self) -> list[Finding]:
        title = f"{self.found.name}, Δ = {self.clip:g}, noise {self.std:g}, {self.found.trials} trials"
        paper = PAPER.get((self.clip, self.std)) if not self.is_valid else None
        plug_in = self.score(Statistic.DISTANCE, PLUG_IN)
        fit = self.score(Statistic.LIKELIHOOD_RATIO, FIT)
        return [
            Finding(
                quantity=f"{title}: (theory/ε̂)/N, plug-in by distance",
                ours=self.ratio,
                paper="" if paper is None else f"{paper:g}",
                n=plug_in.n,
                note=plug_in.note,
            ),
            Finding(
                quantity=f"{title}: Gaussian fit by likelihood ratio, over the exact ε",
                ours=None if fit.value is None or not self.exact else fit.value / self.exact,
                n=fit.n,
                note=fit.note,
            ),
            Finding(
                quantity=f"{title}: AUROC by distance",
                ours=self.auroc(Statistic.DISTANCE),
                paper="a crafted record separates better (figure 8)" if self.is_canary else "",
                n=self.found.trials,
            ),
        ]

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.found.name,
            "clip_norm": self.clip,
            "noise_std": self.std,
            "trials": self.found.trials,
            "facts": describe(dict(self.found.facts)),
            "auroc": {name: _auroc(scores) for name, scores in self.found.samples.items()},
            "scores": {name: [score.to_dict() for score in scores] for name, scores in self.found.scores.items()},
            "theory": [score.to_dict() for score in self.found.theory],
            "histograms": [histogram.to_dict() for histogram in self.found.histograms.values()],
        }


def _auroc(scores: TrialScores) -> float:
    """P(H1 > H0) with ties by half, by ranks."""
    n0, n1 = scores.counts
    ranks = stats.rankdata(np.concatenate([scores.null, scores.alternative]))[n0:]
    return float((ranks.sum() - n1 * (n1 + 1) / 2) / (n0 * n1))


def _text(score: Score) -> str:
    if score.value is None:
        return "-"
    mark = " (saturated)" if score.outcome.label == "saturated" else ""
    if score.interval is None or score.evidence.value == "lower_bound":
        return f"{score.value:.3g}{mark}"
    low, high = score.interval
    return f"{score.value:.3g} ({low:.3g} to {high:.3g}){mark}"


__all__ = ["AttributePrivacy"]
