"""Meanings of the codes and names of a record in plain words; a long file, since it is one table of sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradleak.reporting.blocks import Hint, Inline
from gradleak.reporting.numerals import MISSING, as_number, decimal
from gradleak.results import Outcome, Score, Verdict, VerdictKind, entry_noun, error_name

VERDICT_TITLES: Mapping[VerdictKind, str] = {
    VerdictKind.LEAKS: "Leaks",
    VerdictKind.BOUNDED: "Bounded",
    VerdictKind.INCONCLUSIVE: "Inconclusive",
}

VERDICT_MEANINGS: Mapping[VerdictKind, str] = {
    VerdictKind.LEAKS: "An adversary that never saw the truth got more out of the updates than the thresholds of the plan "
    "allow, and more than luck or the best blind guess gives; or more is lost than is claimed. The explanation of each verdict "
    "names the numbers.",
    VerdictKind.BOUNDED: "A formal guarantee (differential privacy, a Bayesian bound with its prior stated, or a bound on "
    "the information in the updates) limits "
    "what any attacker can reach.",
    VerdictKind.INCONCLUSIVE: "Neither of the two. The reason is given. A failed attack is never evidence of safety: a "
    "stronger one may succeed.",
}

REASONS: Mapping[str, str] = {
    "attribute_told_by_layer": "an attribute is told from the gradients of a single layer",
    "nothing_told": "from no layer alone was the attribute told",
    "not_judged": "whether the attribute is told was not found out",
    "layers_compared": "layers were compared, and nothing was attacked",
    "layers_refused": "no measure of the layers could be taken",
    "attack_reached_threshold": "an attack rebuilt an example",
    "no_attack_reached_threshold": "no attack came close enough",
    "no_attack_ran": "no attack was run",
    "no_attack_finished": "no attack finished",
    "no_attack_had_a_chance": "no attack was begun, since the closed form leaves none a chance",
    "no_signal": "the update carries no signal",
    "control_failed": "a control failed",
    "control_not_run": "the noise control of the attack could not be run",
    "no_better_than_blind": "guessing blindly does nearly as well",
    "no_better_than_chance": "blind guesses come as near by luck",
    "item_failed": "the release could not be made",
    "inconsistent_update": "the update does not fit the stated model",
    "converged_model": "the model has already learned this batch",
    "model_out_of_scale": "numbers of the model keep anything from coming through",
    "all_bounded": "every release is bounded",
    "bayesian_bound": "no attacker does better on average over the stated prior",
    "dp_bound": "differential privacy leaves no attacker a fair chance under the stated prior",
    "wrong_derivative": "the model has wrong second derivatives",
    "advantage_above_zero": "an adversary infers a sensitive variable better than the best blind guess",
    "no_advantage_found": "no adversary did better than the best blind guess",
    "too_few_rows": "an adversary did better than a blind guess with these rows, too few to say so of others",
    "game_refused": "the inference game could not be played",
    "claim_broken": "the claim is broken: more is lost than the claimed epsilon allows",
    "no_noise": "there is no noise: two hypotheses about a record are told apart without error",
    "epsilon_above_threshold": "two hypotheses about a record are told apart too well",
    "epsilon_bounded": "differential privacy leaves little to tell two hypotheses about a record apart",
    "epsilon_within_claim": "hypotheses about a record are told apart, within what is claimed",
    "epsilon_below_threshold": "hypotheses about a record are told apart, though not well",
    "nothing_told_apart": "two hypotheses about a record were not told apart",
    "audit_refused": "the privacy loss could not be measured",
}

_NEXT_BROKEN = (
    "Do not rely on the claimed epsilon: the release loses more than it allows. Look for noise that is smaller than stated, a "
    "divisor, a clipping norm or an amount of noise that depends on the data (how many examples there are, for instance), noise "
    "with a seed that is known, or a sensitivity that is too small; mend it, and audit again with new draws."
)
_NEXT_LEAKS = (
    "Do not share updates of the scenarios that leak. What did not give in to what was tried, and is not bounded, is not "
    "shown to be safe. To go on, audit a stronger defense as a further scenario, against an adversary who knows it."
)
_PREDICTED = (
    "Read the predicted error beside the reached one: where that is small, a better attack is likely to succeed."
)
_NEXT_BOUNDED = (
    "Check that the assumptions of the guarantee (its prior, its noise, its sampling, its clipping) hold for your training, "
    "and mind what is lost over many rounds. A bound on the average says nothing about single examples: ask for a larger "
    "one, or a formal defense, where each of them counts."
)
NEXT_STEPS: Mapping[str, str] = {
    "attribute_told_by_layer": "Do not share updates of this kind as they are. The section on where it leaks says which layers "
    "tell the attribute; those that told nothing are not shown to be safe. To go on, protect the layers that the advice names "
    "(hidden, or with noise) in a further scenario, and look at what the others still tell.",
    "not_judged": "See the reasons in the table of the measure; take more rows, other defenses or other groups.",
    "nothing_told": "Try other classifiers, features and more rows, batches of rows that share the attribute, or an inference "
    "game over several rounds, before you rely on it.",
    "layers_compared": "Protect the layers that the advice names and run the plan again; add an attack, or a measure of an "
    "attribute, for a verdict.",
    "layers_refused": "See the reasons; take other measures, groups, rows or releases.",
    "attack_reached_threshold": _NEXT_LEAKS,
    "claim_broken": _NEXT_BROKEN,
    "control_failed": "Look at the controls first. Until the planted leak is found and pure noise gives nothing, no "
    "number of this run says anything about the release.",
    "inconsistent_update": "Compare mode (train or eval), normalization, loss, reduction, scale and the order of "
    "tensors with the client's code, then run the audit again.",
    "control_not_run": "See why the noise control was refused; disclose what the attack needs, or use another attack.",
    "no_better_than_blind": "Audit other examples too: on an almost constant one nothing can be told apart. Mind the declared "
    "range: in units of one that is far too wide every image is almost constant.",
    "no_better_than_chance": "This is not low risk: batches of fewer examples may leak, and a stronger attack may come nearer "
    "than luck. Audit smaller batches too, disclose labels, or give the attack more steps and starts. Where single examples are "
    "a few bits, which are guessed exactly, only many that are rebuilt at once can tell.",
    "item_failed": "See the failed items, mend the cause and run again: failed items are tried anew.",
    "no_signal": "Check that the right tensors were shared and that the model was not already converged.",
    "converged_model": "Audit an early round: gradients of a model that has learned its batch are too small to tell.",
    "model_out_of_scale": "Look where the buffer or parameter comes from (a training that ran away, statistics of other data), "
    "audit the model that is really sent, and mend it before you share anything.",
    "no_attack_ran": "Add an attack to the plan: closed-form risk alone gives no verdict.",
    "no_attack_finished": "See the failed and refused items for the reasons, mend the plan and run again.",
    "no_attack_had_a_chance": "The closed form is an estimate and no guarantee. Run without a time budget to have attacks "
    "tried all the same, or state a defense with a guarantee.",
    "no_attack_reached_threshold": "Try more starts, or give the adversary more knowledge, before you rely on it.",
    "no_advantage_found": "Give the adversary more public rows, other features, more rounds or a stronger model, and larger "
    "batches, before you rely on it: what one adversary does not find another may.",
    "too_few_rows": "Play the game with more private rows, or users: the adversary is right with these ones, and only their "
    "number keeps this from being a leak.",
    "game_refused": "See the reason; play the game with another release, model or adversary.",
    "epsilon_within_claim": "This neither breaks the claim nor proves it. Craft a canary, take another statistic or more trials "
    "to come closer to the worst case, and go by what is claimed.",
    "epsilon_below_threshold": "No epsilon is claimed, and a canary, another statistic or more trials may find more: add noise "
    "with a guarantee before you rely on it.",
    "nothing_told_apart": "Take more trials, a crafted canary, or the log likelihood ratio: what one record does not show "
    "another may.",
    "audit_refused": "See the reason; audit another release, model or pair of hypotheses.",
    "epsilon_bounded": _NEXT_BOUNDED,
    "all_bounded": _NEXT_BOUNDED,
    "bayesian_bound": _NEXT_BOUNDED,
    "dp_bound": _NEXT_BOUNDED,
    "wrong_derivative": "Look for a custom autograd function whose backward detaches, leaves torch or is not the "
    "derivative of its forward (quantizers, straight-through estimators), audit with one that is differentiable, or take "
    "attacks that need no derivative.",
}

SCORE_NAMES: Mapping[str, str] = {
    "inversion_influence": "I²F: predicted error",
    "inversion_influence_lower_bound": "I²F lower bound",
    "gaussian_reconstruction_error": "expected error of an unbiased attacker under this noise",
    "noise_std_for_threshold": "noise std that brings an unbiased attacker to the threshold",
    "gradient_norm": "norm of the release",
    "bayesian_cramer_rao": "van Trees bound on the mean error of every attacker",
    "reconstruction_probability": "chance of any attacker to rebuild an example",
    "linearized_posterior_error": "error left to an attacker with a prior, linearized",
    "mse": "mean squared {entry} error",
    "pixel_rmse": "{entry} RMSE",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "st_lpips": "ST-LPIPS",
    "exact_hits": "exact hits",
    "label_accuracy": "labels found",
    "wrong_pairing_rmse": "{entry} RMSE against wrong examples",
    "chance_pixel_rmse": "{entry} RMSE of luck",
    "attack_success_rate": "attack success rate",
    "auroc": "AUROC of an adversary",
    "advantage": "advantage over the best blind guess",
    "tpr_at_fpr": "true-positive rate at a low false-positive rate",
    "information_bound": "bound on the information of the updates",
    "information_estimate": "information that an adversary shows",
    "fano_advantage": "advantage that Fano's inequality leaves",
    "epsilon_lower_bound": "lower bound on epsilon",
    "epsilon_estimate": "estimated epsilon",
    "per_attribute_epsilon": "exact epsilon of two hypotheses",
    "replaced_gaussian_epsilon": "exact epsilon of a replaced record",
    "classical_gaussian_epsilon": "epsilon by the classical formula",
    "gaussian_epsilon_share": "exact epsilon, divided by the attributes",
    "classical_epsilon_share": "classical epsilon, divided by the attributes",
    "mean_sensitivity": "sensitivity",
    "mine_information": "mutual information, MINE",
    "neighbor_information": "mutual information, neighbors",
}

LABELS_BY_COUNTS = "labels found, as counts of the batch"

EVIDENCE: Mapping[str, str] = {
    "exact": "the quantity itself, computed without approximation",
    "upper_bound": "at least as large as the quantity",
    "lower_bound": "at most as large as the quantity",
    "estimate": "near the quantity, with no guarantee on which side",
    "attack": "reached by an attack that never saw the truth; a stronger attack may reach more",
}

# Of a picture out of a generator: what the update itself says of it.
SUPPORT: Mapping[str, str] = {
    "supported": "borne out by the update",
    "contradicted": "invented, in part at least, by the prior",
    "undecided": "may be invented by the prior",
}

# The keys are those of the record: `details.support` of an attack behind a generator.
SUPPORT_MEANINGS: Mapping[str, str] = {
    "supported": "Refined by the update alone, without the generator, the picture hardly moved, and the update was explained "
    "better: what it shows comes from the update.",
    "contradicted": "The update leads to another picture, or any picture of the generator explains it as well: this one is "
    "invented, in part at least. That is said of the picture and is no sign that the update gives nothing away: see what "
    "the refined picture reached.",
    "undecided": "The update could not be asked: the picture may be true or invented. This is no sign for it.",
    "refined": "The claim of an attack behind a generator, refined by the update alone, without generator and priors: a claim "
    "of its own, which audits score beside the one that it began with.",
}

CONTROL_TEXT = (
    "Checks of the audits themselves: what was planted must be found, and where there is nothing to be found nothing may be. "
    "Results whose control failed, or could not be run, cannot be read."
)
CONTROL_NOT_RUN = (
    "The control could not be run, so that nothing was checked: no result of what it belongs to, found or not found, can be "
    "relied on."
)


def named(*parts: str) -> str:
    """One name of several, with a mark between them that names hardly hold."""
    return " · ".join(dict.fromkeys(part for part in parts if part))


def next_step(verdict: Verdict, *, bounded: Sequence[str] = (), predicted: bool = False) -> str:
    """Next step after this verdict.

    Args:
        verdict: on the run.
        bounded: names of the scenarios that are bounded.
        predicted: whether a closed form predicts errors that stand beside those of attacks.
    """
    if verdict.verdict is VerdictKind.LEAKS:
        step = NEXT_STEPS.get(verdict.reason, _NEXT_LEAKS)
        return f"{step} Bounded already: {', '.join(bounded)}." if bounded else step
    if verdict.reason == "no_attack_reached_threshold" and predicted:
        return f"{_PREDICTED} {NEXT_STEPS[verdict.reason]}"
    return NEXT_STEPS.get(verdict.reason, "Read the reason, remove its cause, and run the audit again.")


def reason(code: str) -> str:
    """A reason code in words."""
    return REASONS.get(code, code.replace("_", " "))


def score_setting(details: Mapping[str, object]) -> str:
    """The numbers that tell two scores of one name apart, in brackets; "" without any."""
    letters = {"epsilon": "ε", "std": "noise std", "noise_std": "noise std", "false_positive_rate": "FPR"}
    found = [
        f"{letter} = {value:.3g}"
        for key, letter in letters.items()
        if isinstance(value := details.get(key), float) and value > 0
    ]
    return f" ({', '.join(found)})" if found else ""


def score_name(name: str, entry: str = "pixel") -> str:
    """The name of a score in words."""
    return SCORE_NAMES.get(name, name.replace("_", " ")).replace("{entry}", entry)


def score_title(score: Score, entry: str = "pixel") -> str:
    """The name of a score in words, with what tells it from others of that name."""
    about = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in score.about.items())
    return score_name(score.name, entry) + score_setting(score.details) + (f", {about}" if about else "")


def outcome(found: Outcome | None) -> Inline:
    """An outcome in words, with what it means and what to do."""
    if found is None:
        return MISSING
    return Hint(found.label.replace("_", " "), f"{found.explanation} {found.remedy}")


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def sequence(value: Any) -> Sequence[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def sentence(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def constants(config: Any, skip: Sequence[str] = ("use", "guarantee", "stage"), joint: str = " = ") -> str:
    """The arguments of a described object: "std = 10⁻³, seed = 4"."""
    parts = [f"{key}{joint}{plain(value)}" for key, value in mapping(config).items() if key not in skip]
    return ", ".join(parts)


def plain(value: Any) -> str:
    """A value of a record as short text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int):
        return str(value)
    number = as_number(value)
    if number is not None:
        return decimal(number)
    if isinstance(value, Mapping):
        inner = constants(value)
        use = str(value.get("use", ""))
        return (f"{use}({inner})" if inner else use) if use else f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(entry) for entry in value) or "none"
    return str(value)


def unit(name: str, kind: str | None) -> str:
    """The unit of a score in print: "pixel RMSE", "input units squared", "release²/input²"."""
    known = {
        "pixel_rmse": error_name(kind),
        "pixel_mse": f"{entry_noun(kind)} MSE",
        "input": "input units",
        "input^2": "input units squared",
        "nat": "nats",
        "1": "no unit",
    }
    return known.get(name, name.replace("gradient", "release").replace("^2", "²"))
