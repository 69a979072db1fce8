"""V-information about a sensitive variable that a classifier holds of a layer's gradient, on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import scipy
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gradleak.attacks.inference import AllEntries, Classifier, Features, Layout, RandomForest
from gradleak.core import derive_generator, derive_seed
from gradleak.core.describe import describe
from gradleak.results import (
    MO_2021,
    Citation,
    Evidence,
    InputError,
    Leakier,
    Outcome,
    Score,
    Seed,
    Share,
    Whole,
)
from gradleak.risk.layer_exposure import Consecutive, layer_groups
from gradleak.risk.layer_measure import LayerMeasure
from gradleak.risk.layer_profile import Groups, LayerProfile, LayerScale, LayerSite, PairedRows

Floats = NDArray[np.float64]
Places = NDArray[np.int64]

LARGEST_EXPONENT = 4.0


def folds_of(labels: Places, clusters: Places, folds: int, seed: int) -> list[Places]:
    """The held-out rows of every fold; each holds about the same shares of the values, and no cluster is cut.

    Args:
        labels: (n,) from 0.
        clusters: (n,) what belongs together.
        folds: at least 2, at most the clusters of the rarest value.
        seed: of the draw.

    **Source**: scikit-learn's `StratifiedKFold`, or `StratifiedGroupKFold` where rows belong together.
    """
    from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

    rows = np.zeros((len(labels), 1))
    if len(np.unique(clusters)) == len(clusters):
        split = StratifiedKFold(n_splits=folds, shuffle=True, random_state=seed).split(rows, labels)
    else:
        split = StratifiedGroupKFold(n_splits=folds, shuffle=True, random_state=seed).split(rows, labels, clusters)
    return [np.asarray(held, dtype=np.int64) for _, held in split]


def exponent_of(log_posteriors: Floats, labels: Places, law: Floats) -> float:
    """The exponent t in [0, 4] with the largest mean gain on rows that the model did not see, labels smoothed by a few rows.

    With t = 0 the attacker ignores the gradient, which definition 1 of Mo et al. asks of a family; an overconfident model
    then costs it nothing.

    **Smoothing**: where all of the few rows that judge are told rightly, the likelihood grows with t without end, and one row
    told wrongly among those that count later costs more than all others gain. So every label is taken to be drawn anew from
    the law with probability m/(m + n(1 − Σ P²)), which makes one of the rows of every value wrong. For two values in equal
    shares these are Platt's targets (N + 1)/(N + 2). What is told without a mistake thereby loses about m/n nats.

    Args:
        log_posteriors: (n, m).
        labels: (n,).
        law: P(a), (m,), positive.

    **Source**: Platt 1999, "Probabilistic outputs for support vector machines", section 2.2; more than two values are ours.
    """
    count, values = log_posteriors.shape
    share = values / (values + count * (1.0 - float(np.square(law).sum())))
    targets = share * law + (1.0 - share) * np.eye(values)[labels]

    def loss(exponent: float) -> float:
        gains = [gains_of(log_posteriors, np.full(count, value), law, exponent) for value in range(values)]
        return -float((targets * np.stack(gains, axis=1)).sum(axis=1).mean())

    found = scipy.optimize.minimize_scalar(loss, bounds=(0.0, LARGEST_EXPONENT), method="bounded")
    # The mean is concave in the exponent, and 0 at 0, which a bounded search never quite reaches.
    return float(found.x) if found.fun < 0.0 else 0.0


def gains_of(log_posteriors: Floats, labels: Places, law: Floats, exponent: float) -> Floats:
    """Log `f[g](a)` − log `f[∅](a)` of every row, in nats, for f[g] ∝ P(a) (q(a|g)/P(a))^t and f[∅] = P.

    Args:
        log_posteriors: log q, (n, m).
        labels: (n,).
        law: P(a), (m,), positive.
        exponent: t.
    """
    if exponent == 0.0:
        return np.zeros(len(labels))
    tempered = exponent * (log_posteriors - np.log(law))
    norm = scipy.special.logsumexp(tempered + np.log(law), axis=1)
    found: Floats = tempered[np.arange(len(labels)), labels] - norm
    return found


def cluster_interval(
    values: Floats, clusters: Places, *, confidence: float, resamples: int, folds: int, seed: int
) -> tuple[float, float]:
    """The percentile bootstrap interval of a mean over rows, with whole clusters drawn anew, and stretched for the folds.

    Gains of one fold are independent given its model; those of two folds are not, since each was judged by a model that
    learned from the other. The distances of the ends from the mean take the factor √(1 + K/(K − 1)) for K folds.

    **Source**: Nadeau and Bengio 2003, section 3 (the corrected variance), for a ratio of 1/(K − 1) of rows that judge to
    rows that teach.
    """
    names, places = np.unique(clusters, return_inverse=True)
    sums, counts = np.bincount(places, weights=values), np.bincount(places).astype(np.float64)
    random = np.random.default_rng(seed)
    means = np.empty(resamples)
    for place in range(resamples):
        drawn = random.integers(0, len(names), len(names))
        means[place] = sums[drawn].sum() / counts[drawn].sum()
    half = (1.0 - confidence) / 2.0
    low, high = (float(end) for end in np.quantile(means, [half, 1.0 - half]))
    mean, factor = float(values.mean()), widening(folds)
    return mean + factor * (min(low, mean) - mean), mean + factor * (max(high, mean) - mean)


def widening(folds: int) -> float:
    """√(1 + K/(K − 1)): by how much an interval over the rows of K folds is stretched (see `cluster_interval`)."""
    return math.sqrt(1.0 + folds / (folds - 1.0))


# Independent rows of every value that an estimate needs, however few the folds.
_LEAST = 8


@dataclass(frozen=True, kw_only=True)
class LatentInformation(LayerMeasure):
    """The V-information of an attribute a in the gradients of every layer, in nats: mean log `f[g](a)` − mean log `f[∅](a)`.

    Both terms are of rows that the attacker was not fitted on: rows are split into folds, and each is judged by a model of
    the others. `f[∅](a)` is the share of a among the held-out rows, the best that an attacker without gradients can say.
    f[g] is the classifier's posterior, tempered towards f[∅] by an exponent, so that the family holds the attacker who ignores
    g (definition 1 of the paper), and V-information is at least 0. The exponent of a fold is the one that would have been best
    for the held-out posteriors of all other folds, with labels smoothed by a few rows (`exponent_of`): an attribute that is
    told without a mistake loses about m/n nats thereby. Those posteriors come from models that learned from the fold's
    rows, so that its labels have a say in this one number; on random gradients that showed in no interval.

    **Assumptions**: an estimate, from below for the family that is named: another classifier, other features or more rows may
    find more, and no family of attackers bounds another. Rows are independent, or whole `clusters` are. The interval is the
    percentile bootstrap over held-out rows, with the fitted attackers given, and stretched since the models of two folds share
    rows (by 1.5 for five folds): a precaution, wider than the stated coverage asks for where nothing is to be found. Its
    upper end is at least 0, since the truth is.

    Args:
        classifier: the attack family.
        features: what of a layer's gradient it is given.
        by: None for every matrix of gradients by itself, `Consecutive` for sets of matrices that follow one another, or named
            groups of them.
        folds: at least 2.
        confidence: of the interval.
        resamples: of the bootstrap.
        seed: of folds, fits and bootstrap; every layer gets the same folds.

    Raises:
        InputError: for a number out of range.

    **Cost**: one fit a fold and group.

    **Source**: Mo et al. 2021, definition 2 and equations 6 and 7. Deviations: f[∅] is the held-out marginal, not ½, which
    gives an attribute that nine in ten have 0.37 nats from nothing; the paper's number, with 1/m for m values and no
    tempering, stands in `details["with_uniform_prior"]`. Likelihoods are held out and cross-fitted, where the paper does not
    say on which rows they are taken.

    Examples:
        >>> random = torch.Generator().manual_seed(0)
        >>> labels = torch.arange(200) % 2
        >>> gradients = {"0": torch.randn(200, 3, generator=random), "2": labels[:, None].float()}
        >>> profile = LatentInformation()(gradients, labels)
        >>> profile.leakiest, round(profile.scores["2"].value, 2)
        ('2', 0.68)
    """

    name: ClassVar[str] = "latent_information"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)
    summary: ClassVar[str] = "V-information of an attribute in the gradients of each layer, for a family of classifiers"
    reads_told: ClassVar[bool] = True
    needs_values: ClassVar[bool] = True

    classifier: Classifier = field(default_factory=RandomForest)
    features: Features = field(default_factory=AllEntries)
    by: Consecutive | Mapping[str, Sequence[str]] | None = None
    folds: Annotated[int, Whole(2)] = 5
    confidence: Share = 0.95
    resamples: Annotated[int, Whole(100)] = 1000
    seed: Seed = 0

    def __call__(
        self,
        gradients: Mapping[str, Tensor | ArrayLike],
        labels: Tensor | ArrayLike,
        *,
        clusters: ArrayLike | None = None,
        learned_from: Mapping[str, Tensor | ArrayLike] | None = None,
    ) -> LayerProfile:
        """The V-information in every layer, or group of layers.

        Args:
            gradients: (n, ...) by name of the layer, tensor or block, in the order of the model, for instance of
                `gradleak.training.releases.layer_gradients`: those of n examples, or of n batches whose rows share the attribute.
            labels: (n,) whole numbers, the attribute of every row.
            clusters: (n,) whole numbers; rows with the same one belong together (batches that share rows, one user), are
                never split between fit and judgment, and are drawn together. None for independent rows.
            learned_from: the gradients of the same rows as the attackers take them to be, in the same layout: without the
                defense that `gradients` went through, for attackers who do not know of it (static ones). They are fitted
                and calibrated on these, and judged on `gradients`. None for attackers who know.

        Returns:
            Scores named `latent_information` in nats with evidence "estimate". `details`: bits, entropy of the attribute,
            `unclipped`, `untempered`, `with_uniform_prior`, held-out accuracy and that of the best blind guess, exponents,
            attacker. `not_resolvable` where a value of the attribute has fewer clusters than folds, `not_finite` for
            gradients that are not.

        Raises:
            InputError: for sizes that do not fit.
        """
        rows = _matrices(gradients)
        taught = rows if learned_from is None else _alike(rows, _matrices(learned_from))
        true = _array(labels)
        count = len(next(iter(rows.values())))
        _check_whole("labels", true, count)
        belongs = np.arange(count) if clusters is None else _array(clusters)
        _check_whole("clusters", belongs, count)
        groups = self._groups(list(rows))
        values, places = np.unique(true, return_inverse=True)
        law = np.bincount(places) / count
        few = _too_few(places, belongs, len(values), self.folds)
        if few:
            lost = _score(self.name, None, outcome=Outcome.NOT_RESOLVABLE, note=few, n=count)
            return LayerProfile(measure=self.name, scores=dict.fromkeys(groups, lost), groups=groups)
        held_out = folds_of(places, belongs, self.folds, derive_seed(self.seed, "folds") % 2**32)
        scores, gains = {}, {}
        for group, members in groups.items():
            scores[group], found = self._of_group(
                {name: rows[name] for name in members},
                {name: taught[name] for name in members},
                places,
                belongs,
                law,
                held_out,
            )
            if found is not None:
                gains[group] = found
        paired = PairedRows(
            values=gains,
            clusters=belongs,
            widening=widening(len(held_out)),
            confidence=self.confidence,
            resamples=self.resamples,
            seed=derive_seed(self.seed, "differences"),
        )
        return LayerProfile(measure=self.name, scores=scores, groups=groups, rows=paired)

    def by_layer(self, site: LayerSite, groups: Groups) -> LayerProfile:
        """The V-information of what is told in the site's gradients, which takes the groups as they are."""
        fitted = replace(self, by=None)(site.gradients(groups), site.target, clusters=site.rows.clusters)
        return replace(fitted, measure=site.label, groups=groups)

    def layer_cost(self, scale: LayerScale) -> float:
        """One gradient a row, each time that they are read."""
        return scale.rows * (1 + scale.null + scale.sets)

    def apart(self, scale: LayerScale) -> bool:
        """True where the gradients are quickly taken again for every group."""
        return scale.few

    @property
    def variant(self) -> str:
        """The classifier."""
        return type(self.classifier).__name__

    @property
    def layer_parts(self) -> tuple[object, ...]:
        """The classifier."""
        return (self.classifier,)

    def _groups(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        if self.by is None:
            return {name: (name,) for name in names}
        # A matrix is a layer of one tensor, whatever its name.
        whose = {f"{name}.gradient": name for name in names}
        return {
            group: tuple(whose[one] for one in found) for group, found in layer_groups(list(whose), self.by).items()
        }

    def _of_group(
        self,
        rows: Mapping[str, Tensor],
        taught: Mapping[str, Tensor],
        labels: Places,
        clusters: Places,
        law: Floats,
        held_out: list[Places],
    ) -> tuple[Score, Floats | None]:
        """The score of one group, and what every row contributes to its value; None where there is none."""
        flat = torch.cat(list(rows.values()), dim=1)
        same = all(taught[name] is rows[name] for name in rows)
        lesson = flat if same else torch.cat(list(taught.values()), dim=1)
        lost = ~(torch.isfinite(flat) & torch.isfinite(lesson)).all(dim=1)
        if bool(lost.any()):
            note = f"{int(lost.sum())} of {len(flat)} gradients are not finite"
            return _score(self.name, None, outcome=Outcome.NOT_FINITE, note=note, n=len(flat)), None
        layout = Layout(sizes={name: part.shape[1] for name, part in rows.items()})
        found = self._held_out(flat, lesson, layout, labels, clusters, law, held_out)
        gains, logs = found.gains, found.log_posteriors
        mean, entropy = float(gains.mean()), float(scipy.special.entr(law).sum())
        low, high = cluster_interval(
            gains,
            clusters,
            confidence=self.confidence,
            resamples=self.resamples,
            folds=len(held_out),
            seed=derive_seed(self.seed, "bootstrap"),
        )
        value = min(max(mean, 0.0), entropy)
        cross = -float(logs[np.arange(len(labels)), labels].mean())
        score = _score(
            self.name,
            value,
            n=len(np.unique(clusters)),
            interval=(min(low, value), max(high, value)),
            note="from below, for this family of attackers: another may find more",
            details={
                "bits": value / math.log(2.0),
                "entropy": entropy,
                "unclipped": mean,
                "untempered": entropy - cross,
                "with_uniform_prior": math.log(len(law)) - cross,
                "accuracy": float((logs.argmax(axis=1) == labels).mean()),
                "blind_accuracy": float(law.max()),
                "exponents": found.exponents,
                "folds": len(held_out),
                "rows": len(labels),
                "confidence": self.confidence,
                "classifier": describe(self.classifier),
                "features": describe(self.features),
                "width": found.width,
                "notes": list(dict.fromkeys(found.notes)),
            },
        )
        # An attacker who does worse than one without gradients is that one, as the value says: it gains 0 on every row.
        return score, gains if mean > 0.0 else np.zeros(len(gains))

    def _held_out(
        self,
        flat: Tensor,
        lesson: Tensor,
        layout: Layout,
        labels: Places,
        clusters: Places,
        law: Floats,
        held_out: list[Places],
    ) -> _HeldOut:
        count, classes = len(labels), len(law)
        found = _HeldOut(gains=np.zeros(count), log_posteriors=np.zeros((count, classes)))
        # What the attackers say of rows as they take them to be, which is what they calibrate on.
        believed = found.log_posteriors if lesson is flat else np.zeros((count, classes))
        for place, held in enumerate(held_out):
            learned = np.setdiff1d(np.arange(count), held)
            shown = [flat[held]] if lesson is flat else [flat[held], lesson[held]]
            logs, (notes, width) = self._fitted(lesson[learned], shown, layout, labels[learned], classes, place)
            found.log_posteriors[held], believed[held] = logs[0], logs[-1]
            found.notes.extend(notes)
            found.width = width
        for held in held_out:
            others = np.setdiff1d(np.arange(count), held)
            exponent = exponent_of(believed[others], labels[others], law)
            found.gains[held] = gains_of(found.log_posteriors[held], labels[held], law, exponent)
            found.exponents.append(exponent)
        return found

    def _fitted(
        self, rows: Tensor, judged: Sequence[Tensor], layout: Layout, labels: Places, classes: int, fold: int
    ) -> tuple[list[Floats], tuple[list[str], int]]:
        """Log-posteriors of each set of judged rows by a model of `rows`; notes and the number of features."""

        def chunks() -> Iterator[Tensor]:
            yield rows

        reduction = self.features.fit(chunks, layout, derive_generator(self.seed, "features", str(fold)))
        seed = derive_seed(self.seed, "fit", str(fold))
        fitted = self.classifier.fit(reduction(rows).numpy(), labels, classes, seed)
        logs = [fitted.log_posterior(reduction(one).numpy()) for one in judged]
        return logs, ([*reduction.notes, *fitted.notes], reduction.width)


@dataclass(kw_only=True, eq=False)
class _HeldOut:
    """Result of all folds."""

    gains: Floats
    log_posteriors: Floats
    exponents: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    width: int = 0


def _array(values: ArrayLike) -> np.ndarray[Any, Any]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _matrices(gradients: Mapping[str, Tensor | ArrayLike]) -> dict[str, Tensor]:
    if not gradients:
        raise InputError("gradients: expected at least one tensor by name, got none")
    rows = {}
    for name, given in gradients.items():
        tensor = (given if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))).detach().cpu()
        if tensor.dim() < 1 or not tensor.is_floating_point() or tensor.numel() == 0:
            raise InputError(
                f"gradients[{name!r}]: expected (n, ...) floating point numbers, got {tuple(tensor.shape)}"
            )
        rows[name] = tensor.reshape(tensor.shape[0], -1)
    sizes = {name: len(tensor) for name, tensor in rows.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"gradients: expected the same number of rows of every tensor, got {sizes}")
    return rows


def _alike(rows: Mapping[str, Tensor], taught: dict[str, Tensor]) -> dict[str, Tensor]:
    expected, got = ({name: tuple(one.shape) for name, one in given.items()} for given in (rows, taught))
    if list(expected.items()) != list(got.items()):
        raise InputError(f"learned_from: expected the layout of the gradients, {expected}, got {got}")
    return taught


def _check_whole(name: str, given: Any, count: int) -> None:
    if given.shape != (count,) or not np.issubdtype(given.dtype, np.integer):
        raise InputError(f"{name}: expected ({count},) whole numbers, got {given.shape} {given.dtype}")


def _too_few(labels: Places, clusters: Places, classes: int, folds: int) -> str:
    if classes < 2:
        return "every row has the same value of the attribute, and it takes two to tell them apart"
    fewest = min(len(np.unique(clusters[labels == value])) for value in range(classes))
    least = max(2 * folds, _LEAST)
    if fewest < least:
        return f"the rarest value has {fewest} independent rows; {folds} folds need at least {least}"
    return ""


def _score(name: str, value: float | None, **rest: Any) -> Score:
    return Score(name=name, value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ESTIMATE, **rest)
