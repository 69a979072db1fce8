"""Meanings of the codes and names of a record in plain words; a long file, since it is one table of sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gradleak.reporting.blocks import MOST, Hint, Inline
from gradleak.reporting.numerals import MISSING, as_number, decimal
from gradleak.results import Evidence, Outcome, Score, Verdict, VerdictKind, entry_noun, error_name

VERDICT_TITLES: Mapping[VerdictKind, str] = {
    VerdictKind.LEAKS: "Leaks",
    VerdictKind.BOUNDED: "Bounded",
    VerdictKind.INCONCLUSIVE: "Inconclusive",
}

VERDICT_MEANINGS: Mapping[VerdictKind, str] = {
    VerdictKind.LEAKS: "An adversary that never saw the truth got more out of the updates than the thresholds of the plan "
    "allow, and more than luck or the best blind guess gives; or more privacy is lost than the plan allows or than is claimed. "
    "The explanation of each verdict names the numbers.",
    VerdictKind.BOUNDED: "A formal guarantee (differential privacy, a Bayesian bound with its prior stated, or a bound on "
    "the information in the updates) limits "
    "what any attacker can reach.",
    VerdictKind.INCONCLUSIVE: "Neither shown to leak nor bounded. The reason is given. A failed attack is never evidence of "
    "safety: a stronger one may succeed.",
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
    "no_attack_finished": "no attack gave a reconstruction",
    "no_attack_had_a_chance": "no attack was begun, since the closed form leaves none a chance",
    "left_out_by_budget": "the time budget left out attacks or controls",
    "no_signal": "no attack found anything in the update to match: it is zero, or noise hides it",
    "control_failed": "a control failed",
    "control_not_run": "the noise control of the attack could not be run",
    "words_leak": "the words of the batch leak, their order was not shown",
    "no_better_than_blind": "a blind guess does nearly as well",
    "no_better_than_chance": "guesses without the update come as near by luck",
    "item_failed": "the release could not be made",
    "inconsistent_update": "the update does not fit the stated model",
    "converged_model": "the model has already learned this batch",
    "model_out_of_scale": "numbers of the model keep anything from coming through",
    "all_bounded": "every release is bounded",
    "bayesian_bound": "no attacker does better on average over the stated prior",
    "dp_bound": "differential privacy leaves every attacker a small chance at most, under the stated prior",
    "wrong_derivative": "the model has wrong second derivatives",
    "advantage_above_zero": "an adversary infers a sensitive variable better than the best blind guess",
    "no_advantage_found": "no adversary did better than the best blind guess",
    "too_few_rows": "an adversary did better than a blind guess with these rows, too few to say so of others",
    "game_refused": "the inference game could not be played",
    "claim_broken": "the claim is broken: more is lost than the claimed epsilon allows",
    "no_noise": "without noise, two hypotheses about a record are told apart without error",
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
_NEXT_LEAKS = "Do not share updates of the scenarios that leak."
_NEXT_LEFT = "Scenarios that no attack broke and no guarantee bounds are not shown to be safe."
_NEXT_DEFENSE = (
    "To go on, audit a stronger defense than those that leak as a further scenario, against an adversary who knows it."
)
_PREDICTED = (
    "Read the predicted error beside the reached one: where that is small, a better attack is likely to succeed."
)
_NEXT_BOUNDED = (
    "Check that the assumptions of the guarantee (its prior, its noise, its sampling, its clipping) hold for your training, "
    "and mind what is lost over many rounds. A bound on the average says nothing about single examples: where each of "
    "them counts, ask for a lower chance, or for more noise."
)
NEXT_STEP = "Read the reason, remove its cause, and run the audit again."
PARTLY: Mapping[str, str] = {
    "words_leak": "**its words were read off the update**, though not their order: do not ship it where a word is private.",
}
"""What leaks by a reason that leaves a scenario inconclusive."""

NEXT_STEPS: Mapping[str, str] = {
    "attribute_told_by_layer": "Do not share updates of this kind as they are. Where the layers to protect first are not enough "
    "(what is still told without them stands beside them), go beyond single layers: a bound on the norm and noise on all of "
    "them. Try it in a further scenario; layers that told nothing are not shown to be safe.",
    "not_judged": "See the reasons in the table of the measure; take more rows, other defenses or other groups.",
    "nothing_told": "Try other classifiers, features and more rows, batches of rows that share the attribute, or an inference "
    "game over several rounds, before you rely on it.",
    "layers_compared": "Protect the layers that the advice names and run the plan again; add an attack, or a measure of an "
    "attribute, for a verdict.",
    "layers_refused": "See the reasons; take other measures, groups, rows or releases.",
    **dict.fromkeys(
        ("attack_reached_threshold", "advantage_above_zero", "epsilon_above_threshold", "no_noise"), _NEXT_LEAKS
    ),
    "claim_broken": _NEXT_BROKEN,
    "control_failed": "Look at the controls first. Until a planted leak is found and pure noise gives nothing, no "
    "number of this run says anything about the release.",
    "inconsistent_update": "Compare mode (train or eval), normalization, loss, reduction, scale and the order of "
    "tensors with the client's code, then run the audit again.",
    "words_leak": "Treat the words as told: a name or a diagnosis needs no order. Keep the tables of embeddings from the "
    "update, or add noise to them, and try an attack that finds the order.",
    "control_not_run": "See why the noise control was refused; disclose what the attack needs, or use another attack.",
    "no_better_than_blind": "Audit other examples too: on an almost constant one nothing can be told apart. Mind the declared "
    "range: in units of one that is far too wide every image is almost constant.",
    "no_better_than_chance": "This is not low risk: batches of fewer examples may leak, and a stronger attack may come nearer "
    "than luck. Audit smaller batches too, disclose labels, or give the attack more steps and starts. Where single examples are "
    "a few bits, which are guessed exactly, only many that are rebuilt at once can tell.",
    "item_failed": "See the failed items, mend the cause and run again: failed items are tried anew.",
    "no_signal": "Where the update is zero, check that the right tensors were shared and that the model was not already "
    "converged. Where noise hides it, this is no evidence of safety: try a stronger attack, or ask for a bound.",
    "converged_model": "Audit an early round: gradients of a model that has learned its batch are too small to tell.",
    "model_out_of_scale": "Look where the buffer or parameter comes from (a training that ran away, statistics of other data), "
    "audit the model that is really sent, and mend it before you share anything.",
    "no_attack_ran": "Add an attack to the plan: closed-form risk alone gives no verdict.",
    "no_attack_finished": "Where attacks failed or were refused, see the reasons, mend the plan and run again. Where they ended "
    "without a claim, a stronger attack may still make one: try others, or state a guarantee, before you rely on it.",
    "left_out_by_budget": "Run the same command with a larger budget, or none: it goes on from here.",
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
    "inversion_influence_numerator": "numerator of I²F alone",
    "gaussian_reconstruction_error": "expected error of an unbiased attacker under this noise",
    "noise_std_for_threshold": "noise std that brings an unbiased attacker to the threshold",
    "token_error_bound": "most errors of the best decoder of a token, mean over places",
    "least_token_error": "fewest errors of any decoder of a token, mean over places",
    "noise_std_for_token_error": "noise std that keeps every decoder of a token above the threshold at every place looked at",
    "gradient_norm": "norm of the release",
    "largest_eigenvalue": "largest eigenvalue of AᵀA",
    "peel_rank": "share of a layer's input that equations determine",
    "bayesian_cramer_rao": "van Trees bound on the mean error of every attacker",
    "reconstruction_probability": "chance of any attacker to rebuild an example",
    "linearized_posterior_error": "error left to an attacker with a prior, linearized",
    "mse": "mean squared {entry} error",
    "pixel_rmse": "{entry} RMSE",
    "psnr": "PSNR",
    "ssim": "SSIM",
    "st_lpips": "ST-LPIPS",
    "exact_hits": "exact hits",
    "token_error": "token error",
    "chance_token_error": "token error of luck",
    "rouge_1": "ROUGE-1",
    "rouge_2": "ROUGE-2",
    "rouge_l": "ROUGE-L",
    "google_bleu": "Google BLEU",
    "feature_mse": "mean squared error of the last features",
    "bag_recall": "words found",
    "bag_precision": "named words that are there",
    "label_accuracy": "labels found",
    "cell_accuracy": "cells found",
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
    "gaussian_epsilon": "epsilon by the exact Gaussian mechanism",
    "pld_epsilon": "epsilon by the privacy loss distribution",
    "rdp_epsilon": "epsilon by Rényi divergences",
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

# The numbers that each threshold of a plan limits.
LIMITS: Mapping[str, str] = {
    "pixel_rmse": "the error of what is rebuilt, other than sentences",
    "baseline_ratio": "that error, as a share of the blind guess",
    "token_error": "the error of sentences that are rebuilt",
    "reconstruction_probability": "the chance that differential privacy may leave to rebuild an example",
    "advantage": "what Fano's inequality may leave to an adversary of a game",
    "epsilon": "of one release, in audits of the privacy loss alone",
}

CONTROL_TEXT = (
    "Checks of the audits themselves: what was planted must be found, and where there is nothing to be found nothing may be. "
    "Where noise led to the truth, or an audit found none of the leaks that were planted for it, its results cannot be read; "
    "beside one that was found, the attack alone is weak whose planted leak was not."
)
CONTROL_NOT_RUN = (
    "The control could not be run, so that nothing was checked: no result of what it belongs to, found or not found, can be "
    "relied on."
)


WRONG_PAIRING = (
    "Claims on a batch come in no order and are paired with its examples one to one before they are scored. The same "
    "claims, each held against a wrong example, reach the errors below on average: an error near its own has found nothing "
    "about single examples, however small it looks."
)
ADVERSARIES = (
    "The adversary of a defended release either knows the defenses and their constants (adaptive), or takes the update for an "
    "undefended one (static); both start from the same guesses. The stronger counts: a defense that stops the static adversary "
    "alone does not protect, and a refused attack is no evidence of safety. Error and blind guess are those of the example of "
    "a batch that came out closest, which need not be the same one in every row."
)
NO_PICTURES = (
    "Pictures are off: the plan did not ask for them (`pictures = true`), or their files are not beside the record."
)


def named(*parts: str) -> str:
    """One name of several, with a mark between them that names hardly hold."""
    return " · ".join(dict.fromkeys(part for part in parts if part))


def next_step(verdict: Verdict, *, bounded: Sequence[str] = (), left: bool = False, predicted: bool = False) -> str:
    """Next step after this verdict.

    Args:
        verdict: on the run.
        bounded: names of the scenarios that are bounded.
        left: whether there are scenarios that neither leak nor are bounded.
        predicted: whether a closed form predicts errors that stand beside those of attacks.
    """
    if verdict.verdict is VerdictKind.LEAKS:
        step = NEXT_STEPS.get(verdict.reason, _NEXT_LEAKS)
        steps = [_NEXT_LEAKS, *([_NEXT_LEFT] if left else []), _NEXT_DEFENSE] if step == _NEXT_LEAKS else [step]
        return " ".join([*steps, *([f"Bounded already: {', '.join(bounded)}."] if bounded else [])])
    if verdict.reason == "no_attack_reached_threshold" and predicted:
        return f"{_PREDICTED} {NEXT_STEPS[verdict.reason]}"
    return NEXT_STEPS.get(verdict.reason, NEXT_STEP)


def reason(code: str) -> str:
    """A reason code in words."""
    return REASONS.get(code, code.replace("_", " "))


def score_setting(details: Mapping[str, object]) -> str:
    """The numbers that tell two scores of one name apart, and the prior they rest on, in brackets; "" without any."""
    letters = {"epsilon": "ε", "std": "noise std", "noise_std": "noise std", "false_positive_rate": "FPR"}
    if "smallest" in details:
        # Of a mean over releases it is their spread.
        del letters["std"]
    found = [
        f"{letter} = {value:.3g}"
        for key, letter in letters.items()
        if isinstance(value := details.get(key), float) and value > 0
    ]
    if "sensitivity" in details and "delta" in details:
        found.append(_releases(details))
    if isinstance(prior := details.get("under_prior"), str):
        found.append(f"prior: {prior}")
    return f" ({', '.join(found)})" if found else ""


def _releases(details: Mapping[str, object]) -> str:
    """Number of releases that an epsilon of a mechanism holds for: without rounds it is that of one."""
    rounds, steps = (as_number(details.get(key)) or 1.0 for key in ("rounds", "steps_per_round"))
    return "one release" if rounds * steps == 1.0 else f"{rounds * steps:g} releases together"


def score_name(name: str, entry: str = "pixel") -> str:
    """The name of a score in words."""
    return SCORE_NAMES.get(name, name.replace("_", " ")).replace("{entry}", entry)


def score_title(score: Score, entry: str = "pixel") -> str:
    """The name of a score in words, with what tells it from others of that name."""
    # Rounds are counted from 0 in records and from 1 in print.
    about = ", ".join(
        f"{key.replace('_', ' ')} {value + 1 if key == 'round' and isinstance(value, int) else value}"
        for key, value in score.about.items()
    )
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


# Terms of reports and what they mean: the source of tooltips and of docs/explanation/glossary.md.
_TERMS: Mapping[str, str] = {
    "update": "What a client sends to the server: gradients, or the change of its weights, after all defenses.",
    "release": "One update that leaves the client, with the examples behind it.",
    "batch": "Examples that are behind one update together; what is claimed of them is paired with them one to one.",
    "scenario": "A setting that an audit tries: a protocol with its defenses.",
    "attack": "A method that rebuilds examples, or infers a fact on them, from an update, without seeing them.",
    "reference": "A scenario to compare with; no verdict on the run and no gate counts it.",
    "blind guess": "The best answer of an adversary who ignores the update, chosen with the truth: deliberately strong.",
    "pixel RMSE": "The root of the mean squared difference of pixels scaled to [0, 1]: 0 is a copy, 0.1 is clearly recognizable.",
    "column RMSE": "The root of the mean squared difference of columns, each scaled by its range: 0 is a copy.",
    "entry RMSE": "The root of the mean squared difference of entries scaled to [0, 1]: 0 is a copy.",
    "PSNR": "The pixel RMSE on a log scale, in decibels: higher is nearer, 20 is an RMSE of 0.1, and a copy has no limit.",
    "luck": "The error that about one in a hundred draws of guesses without the update comes below: one that is no smaller shows "
    "nothing.",
    "token error": "The share of the words of a sentence that are not claimed at their place: 0 is the sentence itself.",
    "bag of words": "The words of a batch, without their order.",
    "ROUGE-L": "The longest row of words that claim and sentence have in common, in order and with gaps, as a share of both: "
    "100 % is the sentence.",
    "Google BLEU": "The share of rows of one to four words that claim and sentence have in common: 100 % is the sentence.",
    "exact hits": "Examples that an attack rebuilt to an error below 0.001.",
    "std": "Standard deviation, here of noise that is added to every shared number.",
    "closed form": "A formula of the derivative of the release, without any attack.",
    "unbiased": "Of an attacker who uses no prior and no limits of the data; one with a prior comes nearer.",
    "guarantee": "A statement that holds for every attacker, under the assumptions that stand beside it.",
    "prior": "What is assumed to be known of an example before the update is seen.",
    "differential privacy": "Noise on clipped contributions, so that nobody can tell well whether an example took part.",
    "DP-SGD": "Training with clipped gradients of single examples and Gaussian noise on their sum.",
    "epsilon": "The privacy loss: seeing the update changes the odds of any guess by a factor of at most e to the epsilon, "
    "but for a chance of delta.",
    "delta": "The chance with which the limit of epsilon may be passed.",
    "van Trees": "An inequality that bounds the average error of every attacker from below, over a stated prior.",
    "Fano": "An inequality that bounds what any adversary can infer by the information that the updates hold.",
    "AUROC": "The chance to rank a batch with the property above one without: 0.5 is guessing, 1 is always right.",
    "advantage": "The share of a blind guesser's errors that the adversary avoids: 0 is no better, 1 is always right.",
    "static": "Of an adversary who takes the update for an undefended one.",
    "adaptive": "Of an adversary who knows the defenses and their constants.",
    "canary": "An example that is made to be told apart as easily as possible; it need not be a valid record.",
    "test accuracy": "The share of right answers on rows that nobody trained on.",
    "hypotheses": "Two releases that differ in one thing alone, such as an attribute of one record.",
    "nats": "A unit of information: ln 2, that is 0.693, tells one of two equally likely answers.",
    "sensitivity": "The change of a layer's part of the release, for a change of the input of length one.",
    "latent information": "What a classifier reads of the attribute in the gradients of a layer, in nats.",
    "interval": "Where the number lies with the stated confidence, 95 % unless another one is named.",
    "control": "A check of the audit itself: a planted leak must be found, and in noise nothing may be.",
}

GLOSSARY: Mapping[str, str] = {
    **_TERMS,
    **{kind.value: VERDICT_MEANINGS[kind] for kind in VerdictKind},
    **{kind.value.replace("_", " "): f"{sentence(EVIDENCE[kind])}." for kind in Evidence if kind != "attack"},
}
# The longest first, so that "token error" is not read as less. Other verdicts, and kinds of evidence, have marks of their own.
_EXPLAINED = sorted((*_TERMS, VerdictKind.BOUNDED.value), key=len, reverse=True)
_FOUND = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, _EXPLAINED))})(?:e?s)?(?![\w-])", re.IGNORECASE)
_BY_LOWER = {term.lower(): term for term in _EXPLAINED}
# Within these nothing is explained, and neither is what has a title already.
_BARE = ("abbr", "svg", "legend", "label", "summary", "code", "th")


def explained(html: str) -> tuple[str, Mapping[str, str]]:
    """A part of a page whose terms carry their meaning where they stand first, and all terms and marks in it.

    Args:
        html: well-formed, made by this package.
    """
    used: dict[str, str] = {}
    told: set[str] = set()
    shown: list[str] = []
    open_: list[tuple[str, bool]] = []

    def mark(match: re.Match[str]) -> str:
        term = _BY_LOWER[match[1].lower()]
        if term in used:
            return match[0]
        used[term] = GLOSSARY[term]
        return f'<abbr title="{escape(GLOSSARY[term])}">{match[0]}</abbr>'

    for piece in re.split(r"(<[^>]*>)", html):
        if not piece.startswith("<"):
            # A heading of a column sorts when it is clicked: its terms stand in the list alone.
            told |= {
                _BY_LOWER[one[1].lower()] for one in _FOUND.finditer(piece) if any(name == "th" for name, _ in open_)
            }
            shown.append(piece if any(bare for _, bare in open_) else _FOUND.sub(mark, piece))
            continue
        shown.append(piece)
        name = re.match(r"</?(\w+)", piece)
        if name is None or name[1] in ("br", "img", "input", "wbr"):
            continue
        if piece.startswith("</"):
            open_.pop()
        elif not piece.endswith("/>"):
            open_.append((name[1], name[1] in _BARE or " title=" in piece))
    marked = [kind.replace("_", " ") for kind in re.findall(r'class="(?:chip chip|badge badge)-(\w+)"', html)]
    marks = {term: GLOSSARY[term] for term in (*marked, *told) if term in GLOSSARY}
    return "".join(shown), dict(sorted({**used, **marks}.items(), key=lambda pair: pair[0].lower()))


def terms_of(text: str) -> Mapping[str, str]:
    """The terms of a text with their meanings, in order."""
    found = {_BY_LOWER[match[1].lower()] for match in _FOUND.finditer(text)}
    return {term: GLOSSARY[term] for term in sorted(found, key=str.lower)}


def glossary_page() -> str:
    """The page of the documentation, as Markdown."""
    lines = [
        "# Glossary",
        "",
        "The terms of reports. This page is made by `python -m tools.glossary` of the tooltips of the reports.",
        "",
        "| Term | Meaning |",
        "| --- | --- |",
        *(
            f"| **{term}** | {meaning} |"
            for term, meaning in sorted(GLOSSARY.items(), key=lambda pair: pair[0].lower())
        ),
    ]
    return "\n".join(lines) + "\n"


def errors_read(error: str, entries: str, *, image: bool) -> list[str]:
    """Rule by which an attack is said to have rebuilt an example, and the meaning of its numbers.

    Args:
        error: its name.
        entries: the name of the numbers of an example.
        image: whether examples are images.
    """
    tenth = "clearly recognizable" if image else "a tenth of the valid range"
    constants = "mid-gray, the best constant a channel" if image else "the middle of the valid range, the best constant"
    psnr = (
        " **PSNR** is the same on a log scale, −20 log₁₀ RMSE in dB; it is infinite for a perfect copy, so counts and "  # noqa: RUF001
        "medians are given and never means."
    )
    return [
        "Attacks on a release say “leaks” where one that never saw the truth rebuilt at least one example: its error is "
        "below the threshold, at most the stated share of what a blind guess gives, and smaller than luck brings.",
        f"**{sentence(error)}** is the root of the mean squared difference of {entries} scaled to "
        f"[0, 1]: 0 is a perfect copy, 0.1 is {tenth}.{psnr if image else ''} The **blind guess** is the "
        f"error of the best guess that ignores the update: {constants} *chosen with the truth by the scorer*, or the "
        f"mean public {'picture' if image else 'example'} where one is known. It is deliberately strong, so that "
        "“leaks” is conservative.",
    ]


def abridged(plan: Any) -> Any:
    """The plan without the ends of its long lists: of indices, and of batches that are all alike.

    Args:
        plan: resolved, as the header of a record has it.
    """
    if isinstance(plan, Mapping):
        return {key: abridged(value) for key, value in plan.items()}
    if not isinstance(plan, list):
        return plan
    return (
        [abridged(one) for one in plan]
        if len(plan) <= MOST
        else [
            *map(abridged, plan[:3]),
            f"... {len(plan) - 3:,} more in the record",
        ]
    )
