"""Words of the section on where it leaks: of measures, of groups of layers, of the advice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from gradleak.reporting import words
from gradleak.reporting.numerals import as_number, decimal, percent
from gradleak.results import Leakier, Score

TEXT = (
    "A release is made of layers, and they do not leak alike. Each measure gives one number for a layer or a set of "
    "layers. About the inputs themselves (original information) another layer may leak most than about an attribute that "
    "the model was never asked for (latent information). The measures are the defender's: they read private examples, or "
    "what is known of them. They have units of their own, so that layers are compared within one measure, never a measure "
    "with another. Measures of an attribute have a negative control (a shuffled attribute); nothing is planted for them. An "
    "interval holds for other rows too, so that it may pass the most that these rows can tell."
)
SCALE = (
    "Rows are layers in the order of the model, from the input down, or sets of visible tensors, each seen without the "
    "others, in the order of the plan. The color is the number divided by the largest one of its "
    "measure; of measures by which lower values leak more it is turned round: the smallest number divided by this one. A "
    "frame marks the layer that leaks most, a dotted frame those that are not distinguishable from it, so that any of them may "
    "leak most; a number that is not beyond chance has neither. Hatched cells have no value, and say why; that is no evidence of "
    "safety. A pale cell leaks less than the leakiest one by this measure, which may still be much."
)
BY_EFFECT = "compared by effect size"
DIRECTIONS: Mapping[Leakier, str] = {
    Leakier.HIGHER: "higher leaks more",
    Leakier.LOWER: "lower leaks more",
    Leakier.NEITHER: "no measure of leakage",
}
CONTROL_FAILED = "control FAILED"
FAILED = (
    "The negative control of this measure failed: it finds something about a shuffled attribute, so that none of its "
    "numbers says which layer leaks."
)
ADVICE = (
    "Layers in the order in which to protect them: each stands where the measure that thinks worst of it puts it, and one "
    "without a value counts as one that may leak. Down this order a layer is chosen while its parameters fit the budget."
)
NOT_SAID = (
    "What the advice does not say: that it is enough. Hiding or noising these layers protects against what was measured "
    "here, on these examples and with these attackers, and guarantees nothing. The layers that are left leak too; an "
    "attacker may do as well with them, and another measure may put other layers first. Attack the protected release "
    "before you rely on it. A guarantee takes noise on every layer (differential privacy)."
)
NO_VALUE = "No layer has a value by any measure: see the reasons below. That is no evidence of safety."
KNOWN = (
    "Who measures knows the model, its parameters, the protocol and the defenses, and has the private examples or their "
    "attributes. An attack among the measures sees the update of the visible layers alone and knows the parameters of all; it "
    "never sees the private examples."
)
LEAKS = (
    "Layers leak where classifiers tell an attribute from the gradients of one of them, on rows that they were not fitted on, "
    "by an interval above 0 that holds for all layers together. Measures of the inputs say where to look, and give no verdict."
)
KEY = (
    "▲ leaks most by this measure; ≈ may leak as much (not distinguishable); ° not beyond chance. Numbers of different measures "
    "are not to be compared, and a word in place of a number is no evidence of safety."
)
# What a number of each measure says.
MEASURES: Mapping[str, str] = {
    "original_information": "how much better one inversion that sees these layers alone knows the inputs, from the error "
    "of its claims (of images, one minus their similarity, SSIM); at most 19.7 nats by the paper's scale. A stronger "
    "attack may reach more",
    "mean_sensitivity": "how strongly the gradient of the layer reacts to one input, averaged over examples. A layer that "
    "does not react gives no inputs away; one that does need not, and larger layers react more",
    "sensitivity": "how strongly the gradient of the layer reacts to the input. A layer that does not react gives no "
    "inputs away; one that does need not, and larger layers react more",
    "linearized_posterior_error": "the average error of an attacker who sees the layer alone, knows how inputs are spread (a "
    "Gaussian prior) and takes the release for a linear one. Where it is near the spread itself the layer tells little",
    "latent_information": "by how many nats classifiers of the stated family know an attribute better with the gradients "
    "of the layer than without, on examples that they did not learn from. From below: others may find more",
    "subspace_distance": "the distance between what the gradients with and those without an attribute span. It grows with "
    "the size of the layer, so that layers are compared by how far it lies above random groups (effect size, in standard "
    "deviations)",
    "mine_information": "mutual information by a trained critic, an estimate that is too low where much is told, and that "
    "is judged on examples it did not learn from",
    "neighbor_information": "mutual information by nearest neighbors, an estimate without training that is too low where "
    "much is told or many components matter",
}
ABOUT: Mapping[str, str] = {"original": "about the inputs", "latent": "about an attribute"}

IN_ORDER = "Layers in the order of the model, each read out of the whole update"
SETS = (
    "Visible sets in the order of the plan: what is read by one who sees these tensors alone, the rest being hidden. A norm is "
    "then clipped without what is hidden, so that a number may differ from that of the same layer in the whole update"
)
STANDINGS: Mapping[str, str] = {
    "leakiest": "leaks most",
    "reaches": "yes, not distinguishable",
    "untested": "not tested, no interval",
    "below": "no",
}

CHANCE = "not beyond chance"


def by_chance(score: Score, about: str) -> bool:
    """True if what was told of an attribute is no more than chance gives: p above 0.05, or an interval that reaches 0.

    Args:
        score: of one layer.
        about: "original", "latent" or "".
    """
    if score.value is None:
        return False
    chance = as_number(score.details.get("p_value"))
    if chance is not None:
        return chance > 0.05
    return about == "latent" and score.interval is not None and score.interval[0] <= 0.0


_FACTS = (
    "attack", "classifier", "features", "folds", "metric", "dimension", "columns", "permutations", "norm", "sigma", "hidden",
    "steps", "neighbors", "components", "confidence",
)  # fmt: skip
# Of the claims of an inversion.
_ERRORS = {"ssim": "SSIM", "normalized_error": "normalized error", "cosine": "cosine"}


def measure_name(measure: str) -> str:
    """A measure in words; what tells two of one kind apart stays in brackets behind it.

    Args:
        measure: its name, for instance "sensitivity (frobenius)".
    """
    base, bracket, rest = measure.partition(" (")
    return f"{words.score_name(base)}{bracket}{rest}"


def beside(score: Score, *, effect: bool) -> str:
    """Results of chance or a blind guess, beside the number; "" where nothing is known of it.

    Args:
        score: of one layer.
        effect: whether the effect size belongs here.
    """
    details = {key: as_number(value) for key, value in score.details.items()}
    parts = []
    if details.get("null_mean") is not None:
        parts.append(f"random groups {decimal(details['null_mean'])}")
        if details.get("p_value") is not None:
            parts.append(f"p = {decimal(details['p_value'])}")
        if effect and details.get("effect_size") is not None:
            parts.append(f"effect {decimal(details['effect_size'])}")
    if right(score):
        parts.append(right(score))
    if details.get("with_uniform_prior") is not None:
        parts.append(f"with values equally likely {decimal(details['with_uniform_prior'])}")
    for name, called_so in _ERRORS.items():
        if details.get(name) is not None:
            blind = details.get(f"blind_{name}")
            told = f", blind attacker {decimal(blind)}" if blind is not None else ""
            parts.append(f"{called_so} {decimal(details[name])}{told}")
    if details.get("against_blind") is not None:
        parts.append(f"beyond the blind attacker {decimal(details['against_blind'])}")
    if details.get("target_entropy") is not None:
        parts.append(f"at most {decimal(details['target_entropy'])}, the entropy of the labels")
    elif details.get("ceiling") is not None:
        parts.append(f"so many rows tell at most {decimal(details['ceiling'])}")
    return "; ".join(parts)


def right(score: Score) -> str:
    """The share of right answers beside that of a blind guess; "" where the score has none.

    Args:
        score: of one layer.
    """
    accuracy, blind = (as_number(score.details.get(key)) for key in ("accuracy", "blind_accuracy"))
    return "" if accuracy is None or blind is None else f"right in {percent(accuracy)}, blind guess {percent(blind)}"


def how_measured(score: Score | None) -> str:
    """Settings of a profile in words, from the details of one of its scores.

    Args:
        score: one with a value, or None.
    """
    if score is None:
        return ""
    details = score.details
    return ", ".join(f"{key} {words.plain(details[key])}" for key in _FACTS if details.get(key) is not None)


def meanings(measures: Iterable[str]) -> dict[str, str]:
    """Meaning of a number of each measure, by its name in words; measures that are not known here are left out.

    Args:
        measures: their names.
    """
    bases = dict.fromkeys(name.partition(" (")[0] for name in measures)
    return {words.score_name(name): MEASURES[name] for name in bases if name in MEASURES}


def called(name: str) -> str:
    """A layer within a sentence: one that is a number alone is called "layer 2".

    Args:
        name: of a layer.
    """
    return f"layer {name}" if name.isdecimal() else name


def few(names: Sequence[str], most: int = 3) -> str:
    """The first names within a sentence, and how many more there are.

    Args:
        names: of layers.
        most: how many are named.
    """
    more = len(names) - most
    return ", ".join(map(called, names[:most])) + (f" and {more} more" if more > 0 else "")


def plain_why(text: str, measures: Iterable[str]) -> str:
    """A sentence of the advice with measures in words.

    Args:
        text: as the record holds it.
        measures: their names.
    """
    names = sorted(measures, key=len, reverse=True)
    if not names:
        return text
    either = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in names)
    return re.sub(either, lambda found: measure_name(found[0]), text)
