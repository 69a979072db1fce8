"""Texts of `gradleak explain`."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable
from functools import partial

from gradleak.cli.arguments import arguments, without_attributes
from gradleak.cli.studies import factories, studies
from gradleak.reporting import words
from gradleak.results import InputError, Outcome
from gradleak.results.errors import shown

EVIDENCE = {
    "exact": "The number is the quantity that its name states, up to round-off.",
    "upper_bound": "The quantity is at most this number.",
    "lower_bound": "The quantity is at least this number.",
    "estimate": "The number approximates the quantity; it is neither a bound nor exact.",
    "attack": "An attack without truth reached this number; a stronger attack may reach more.",
}
SCORES = {
    "mse": "The mean squared error of an example in pixels scaled to [0, 1]; of a batch the smallest.",
    "pixel_rmse": "The root mean squared error of an example in pixels (or features) scaled to [0, 1], the smallest of a "
    "batch after claims and examples were paired; what the verdict 'leaks' reads.",
    "psnr": "-10 log10 of the mean squared error, in dB; of a batch the largest.",
    "ssim": "Mean structural similarity of images of at least 11 by 11 pixels (Wang et al. 2004), at most 1; of a batch "
    "the largest.",
    "exact_hits": "The share of examples with a pixel RMSE below 1e-3; of sentences with every word in place and none besides.",
    "token_error": "The share of the words of a sentence that a claim does not have at their place, the smallest of a batch "
    "after claims and sentences were paired; what is no known word counts nowhere. What 'leaks' reads for text.",
    "chance_token_error": "The token error that the best sentence of a guesser without the update falls below in 1 % of draws: "
    "frequent words, words in their shares, public sentences, random words. The verdict 'leaks' asks for less.",
    "rouge_1": "ROUGE-1 of the claim on token ids, F: shared words. 1 where the bag of words is known, whatever their order.",
    "rouge_2": "ROUGE-2 on token ids, F: shared pairs of neighbors.",
    "rouge_l": "ROUGE-L on token ids, F: the longest sequence that both hold in this order.",
    "google_bleu": "The smaller of precision and recall over all runs of 1 to 4 tokens (Wu et al. 2016).",
    "feature_mse": "The mean squared difference of what goes into the model's last linear layer for the true and for the claimed "
    "sentence, the smallest of a batch.",
    "bag_recall": "The share of the words of a batch that a claim names, each as often as it stands there, whatever the places.",
    "bag_precision": "The share of the words that a claim names that are in the batch so often.",
    "label_accuracy": "The share of examples whose class was claimed rightly, each claim held against the example that its "
    "image was paired with. The order of a batch cannot be recovered, so that labels behind poor images look unknown: the "
    "details (and reports) hold the share by counts of the batch, whatever the images, which is what is known of the labels.",
    "cell_accuracy": "The share of the cells of a table's row that were claimed rightly, of a batch the best row's: a category "
    "that is named, a number within a twentieth of its range. The details have the shares by column. Whoever knows the "
    "population guesses many cells blindly: hold it against a row of the most frequent values.",
    "wrong_pairing_rmse": "The average error of the claims on a batch against wrong examples: a pixel RMSE near it has found "
    "nothing about single examples, however small it looks.",
    "chance_pixel_rmse": "The error that guesses without the update, paired with the batch like claims, reach at one of its "
    "examples by luck, where examples have at most 32 entries or public rows are known; about 1 % of guessers are below one of "
    "the limits in the details (of the smallest error, the second smallest, ...). The verdict 'leaks' asks for errors below "
    "one of these.",
    "st_lpips": "The ST-LPIPS distance of an image from the claim (Ghildyal and Liu 2022), the smallest of a batch: 0 for equal "
    "images, below about 1 for any. How alike two images look to a network, not who made them: no verdict reads it. "
    "From Python alone (`score_perceptual`), with the extra [metrics].",
    "noise_std_for_threshold": "The standard deviation of Gaussian noise at which the expected error of an unbiased attacker "
    "reaches the pixel RMSE of the verdict 'leaks'.",
    "token_error_bound": "The share of tokens that the best decoder gets wrong at most, told all other tokens and the "
    "candidates, on average over the places that were looked at: a small value shows leakage, and a large one nothing, since "
    "single places may be far below.",
    "least_token_error": "The share of tokens below which no decoder comes on average over the places that were looked at, if "
    "each candidate is as likely, told all other tokens; at one place it may. A language makes some "
    "candidates likelier, so that no verdict reads it.",
    "noise_std_for_token_error": "The standard deviation of Gaussian noise on every shared number from which on no decoder errs "
    "less than the threshold at any place that was looked at, on average over candidates that are as likely.",
    "attack_success_rate": "The share of trials of an inference game in which the adversary's most probable value is the true "
    "one; ties share the credit.",
    "auroc": "The area under the ROC curve of each value of a sensitive variable against all others, the mean over the values "
    "that occur; 0.5 is guessing.",
    "advantage": "max(p - p*, 0)/(1 - p*) for the success rate p of an adversary and p* of the best guess that ignores the "
    "updates. The verdict 'leaks' reads its interval before it is clipped at 0.",
    "tpr_at_fpr": "The share of batches with a value that are found when the stated share of the others is taken for one, at "
    "the threshold of the trials themselves; 'not resolvable' where too few of the others lie above it.",
    "information_bound": "The most that noisy updates of bounded norm can tell of a sensitive variable, in nats: the sum over "
    "rounds of (n/2) log(1 + C^2/(n sigma^2)), and at most its entropy.",
    "information_estimate": "The information that a trained adversary finds in the updates, in nats: the entropy less its "
    "cross-entropy on trials it has not seen. From below.",
    "epsilon_lower_bound": "The privacy loss that trials of two hypotheses show at least, with the stated confidence: no release "
    "of a smaller epsilon lets them be told apart so well. 'Saturated' where it is near the largest value that so many trials "
    "can certify. It breaks a claim, and never proves one.",
    "epsilon_estimate": "An epsilon from trials without a guarantee: a plug-in of error rates, or a bound whose assumption is "
    "not known to hold.",
    "per_attribute_epsilon": "The exact epsilon of one record against itself with another value of an attribute, under the "
    "Gaussian noise of the release: what an audit of that record approaches from below.",
    "fano_advantage": "The largest advantage that Fano's inequality leaves: a bound with a bound on the information, an "
    "estimate with an estimate of it.",
}
ADVERSARIES = {
    "adaptive": "It knows the defenses of the release and their constants. The stronger of the two counts.",
    "static": "It takes a defended update for an undefended one. A defense that stops it alone does not protect.",
}
POLICY = {
    "reference": "Key of a scenario that is there to compare with: no verdict on the run and no gate counts it.",
    "require": "Key of a scenario: the verdict that `--fail-on` holds it to, bounded or not leaks; no verdict fails.",
    "not leaks": "A value of `require`: nothing that was tried may leak. Being inconclusive meets it, which is not 'safe'.",
}
VERDICTS = {
    "leaks": "An attack without truth rebuilt at least one example: pixel RMSE at or below the threshold, and at most "
    "the stated share of what a blind guess gives. Or an adversary infers a sensitive variable better than the best blind "
    "guess, with an interval that lies above it, or a classifier does from the gradients of one layer. Or a lower bound on "
    "epsilon lies above what is claimed, or above the threshold.",
    "bounded": "A guarantee bounds what any attacker can do: differential privacy, the Bayesian Cramér-Rao bound with "
    "its prior stated, or Fano's inequality with an upper bound on the information. Never a failed attack.",
    "inconclusive": "Neither shown to leak nor bounded; the reason is given. This is not 'safe'.",
}


def explanation(name: str) -> str:
    """Meaning of `name`: the docstring of an export with its sources, or a study, score, outcome, verdict, reason ...

    Raises:
        InputError: naming the nearest known name.
    """
    texts, name = _texts(), name.strip()
    # As Python and documents write it: gl.risk.InversionInfluence.
    name = name if name in texts or not name.startswith(("gl.", "gradleak.")) else name.rpartition(".")[2]
    by_lower = {key.lower(): key for key in reversed(texts)}
    key = name if name in texts else by_lower.get(name.lower())
    if key is not None:
        return texts[key]()
    near = difflib.get_close_matches(name, list(texts), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"explain: nothing is called {shown(name)}{hint}; see `gradleak list`")


def _texts() -> dict[str, Callable[[], str]]:
    from gradleak.auditing.catalog import catalog, from_python
    from gradleak.auditing.plan_names import class_methods
    from gradleak.models.generators import train_dcgan, train_vae

    texts: dict[str, Callable[[], str]] = {}
    for kind, meaning in EVIDENCE.items():
        texts[kind] = partial("evidence kind {}: {}".format, kind, meaning)
    for kind, meaning in VERDICTS.items():
        texts[kind] = partial("verdict {}: {}".format, kind, meaning)
    for key, meaning in POLICY.items():
        texts[key] = partial("policy of a plan, {}: {}".format, key, meaning)
    for score, meaning in SCORES.items():
        texts[score] = partial("score {}: {}".format, score, meaning)
    for outcome in Outcome:
        text = "outcome {}: {}\nWhat to do: {}".format
        texts[outcome.label] = partial(text, outcome.label, outcome.explanation, outcome.remedy)
    for name, study in studies().items():
        texts[name] = partial(_study, name, study)
    for name, factory in factories().items():
        texts[name] = texts[factory.__name__] = partial(_documentation, factory)
    for entries in catalog().values():
        for entry in entries.values():
            texts[entry.name] = partial(_documentation, entry.constructor)
            for method in class_methods(entry.constructor):
                texts[f"{entry.name}.{method}"] = partial(_documentation, getattr(entry.constructor, method))
            snake = getattr(entry.constructor, "name", None)
            if isinstance(snake, str):
                texts.setdefault(snake, texts[entry.name])
    for trainer in (train_dcgan, train_vae):
        texts[trainer.__name__] = partial(_documentation, trainer)
    for support, meaning in words.SUPPORT_MEANINGS.items():
        text = "of a picture out of a generator, {}: {} See InventionCheck.".format
        texts.setdefault(support, partial(text, support, meaning))
    for code, meaning in words.REASONS.items():
        step = words.NEXT_STEPS.get(code)
        told = f"reason of a verdict {code}: {meaning}.{f' What to do: {step}' if step else ''}"
        texts.setdefault(code, partial(str, told))
    for score, meaning in words.SCORE_NAMES.items():
        texts.setdefault(score, partial(str, f"score {score}: {meaning.replace('{entry}', 'pixel')}"))
    for name, meaning in ADVERSARIES.items():
        texts.setdefault(name, partial("adversary, {}: {}".format, name, meaning))
    for name in ("I²F", "I2F"):
        texts.setdefault(name, texts["InversionInfluence"])
    # What is for Python alone, and what only a namespace exports.
    for entries in from_python().values():
        for entry in entries.values():
            texts.setdefault(entry.name, partial(_documentation, entry.constructor))
    return texts


def _study(name: str, study: type) -> str:
    run = f"gradleak study {name} --out FOLDER --set NAME=VALUE; the names are the arguments above, texts in quotes."
    return f"{_documentation(study)}\n\nRun it: {run}"


def _documentation(constructor: Callable[..., object]) -> str:
    text = inspect.getdoc(constructor) or ""
    if isinstance(constructor, type) and dataclasses.is_dataclass(constructor):
        lines = [constructor.__name__, "", without_attributes(text), "", arguments(constructor)]
    else:
        try:
            # Annotations that were not evaluated are printed without their quotes.
            signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(constructor)))
            # Members of enumerations as a plan has them.
            signature = re.sub(r"<\w+\.\w+: ('[^']*')>", r"\1", signature)
        except ValueError:
            signature = ""
        lines = [f"{constructor.__name__}{signature}", "", text]
    citations = getattr(constructor, "citations", ())
    if citations:
        lines += ["", "Sources:", *(f"  {citation.text()}" for citation in citations)]
    return "\n".join(lines)
