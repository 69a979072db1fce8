"""Texts of `gradleak explain`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from functools import partial

from gradleak.results import InputError, Outcome

EVIDENCE = {
    "exact": "The number is the quantity that its name states, up to round-off.",
    "upper_bound": "The quantity is at most this number.",
    "lower_bound": "The quantity is at least this number.",
    "estimate": "The number approximates the quantity; it is neither a bound nor exact.",
    "attack": "An attack without truth reached this number; a stronger attack may reach more.",
}
VERDICTS = {
    "leaks": "An attack without truth rebuilt at least one example: pixel RMSE at or below the threshold, and at most "
    "the stated share of what guessing blindly gives.",
    "bounded": "A guarantee bounds what any attacker can do: differential privacy, the Bayesian Cramér-Rao bound with "
    "its prior stated, or Fano's inequality with an upper bound on the information. Never a failed attack.",
    "inconclusive": "Neither shown to leak nor bounded; the reason is given. This is not 'safe'.",
}


def explanation(name: str) -> str:
    """What `name` means: a catalog entry's docstring with its sources, an outcome, an evidence kind or a verdict.

    Raises:
        InputError: naming the nearest known name.
    """
    texts = _texts()
    by_lower = {key.lower(): key for key in reversed(texts)}
    key = name if name in texts else by_lower.get(name.lower())
    if key is not None:
        return texts[key]()
    near = difflib.get_close_matches(name, list(texts), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"explain: nothing is called {name!r}{hint}; see `gradleak list`")


def _texts() -> dict[str, Callable[[], str]]:
    import gradleak
    from gradleak.auditing import catalog

    texts: dict[str, Callable[[], str]] = {}
    for kind, meaning in EVIDENCE.items():
        texts[kind] = partial("evidence kind {}: {}".format, kind, meaning)
    for kind, meaning in VERDICTS.items():
        texts[kind] = partial("verdict {}: {}".format, kind, meaning)
    for outcome in Outcome:
        text = "outcome {}: {}\nWhat to do: {}".format
        texts[outcome.label] = partial(text, outcome.label, outcome.explanation, outcome.remedy)
    for entries in catalog().values():
        for entry in entries.values():
            texts[entry.name] = partial(_documentation, entry.constructor)
            score = getattr(entry.constructor, "name", None)
            if isinstance(score, str):
                texts.setdefault(score, texts[entry.name])
    for name in gradleak.__all__:
        texts.setdefault(name, partial(_documentation, getattr(gradleak, name)))
    return texts


def _documentation(constructor: Callable[..., object]) -> str:
    try:
        signature = str(inspect.signature(constructor))
    except ValueError:
        signature = ""
    lines = [f"{constructor.__name__}{signature}", "", inspect.getdoc(constructor) or ""]
    citations = getattr(constructor, "citations", ())
    if citations:
        lines += ["", "Sources:", *(f"  {citation.text()}" for citation in citations)]
    return "\n".join(lines)
