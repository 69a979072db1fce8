"""The page on closed-form risk: predictions, bounds on every attacker, spectra, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from gradleak.reporting import words
from gradleak.reporting.beyond import MOST_SCORES, STAND_IN_RECORD, Rows
from gradleak.reporting.blocks import (
    MOST,
    Badge,
    Block,
    Figure,
    Fold,
    Hint,
    Section,
    Small,
    Style,
    Table,
    Text,
    Words,
    as_is,
    labels,
    numbers,
    plot,
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, between, count, decimal, quantity
from gradleak.reporting.pages.risk.noise import noise_section
from gradleak.results import Evidence, Outcome, Score
from gradleak.results.findings.risk import Confirmation, RiskFinding, Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BOUNDS = (
    "The van Trees inequality bounds the mean error of **every** attacker over a stated Gaussian prior on the private inputs, "
    "for one release under Gaussian noise. It is an **average over that prior, not a worst case**: single examples may leak far "
    "more, several releases of the same data leak more, and an attacker with a sharper prior may do better. A verdict reads it "
    "only with evidence ",
    Badge(Evidence.LOWER_BOUND),
    ", for noise that the release carries.",
)
_CHANCES = (
    "Differential privacy bounds the chance of every attacker, who may know all else, to come within the stated error of an "
    "example (reconstruction robustness): Φ(μ + Φ⁻¹(κ)), κ the chance of a blind guess under the stated prior. It is an average "
    "over that prior and over the noise; an attacker who knows more about an example, or sees more releases of it, may do "
    "better. Heuristic defenses have no such number."
)
_SPECTRUM = (
    "A is the derivative of the release with respect to the input. An eigenvalue λ of AᵀA says how strongly one direction of "
    "the input shows in the update: noise of standard deviation σ moves a reconstruction by σ/√λ along it. **Large eigenvalues "  # noqa: RUF001
    "leak; small ones are where noise protects**; a direction with λ = 0 cannot be seen at all."
)
_RANK = (
    "Full rank means that without noise the input is determined by the update, at least near the truth. Rank counts eigenvalues "
    "above d · machine precision · λmax."
)
_TOKENS = (
    "A decoder of one token is told all other tokens, the labels and the model, and sees one release. The best one errs "
    "*at most* as often as the first number says, **on average over the places that were looked at**. The second number "
    "is that of the place where it is smallest: tokens leak there if it is small, however large the average is. No "
    "decoder errs *less* than the third number on average over these places and **over the stated prior**; at one of them "
    "it may. The noise keeps decoders above the threshold at every place that was looked at, and other places may need "
    "more. Words of a language are not as likely as each other, so that a decoder that knows the language errs less; no "
    "verdict reads any of these numbers."
)
_VALIDATION = "It starts at the truth and shows where the best fit to the noisy update lies. No adversary can run it."


def page(findings: Sequence[RiskFinding], context: Context) -> Section | None:
    """The section on closed-form risk, None where none was computed."""
    if not findings:
        return None
    parts = (
        noise_section(findings, context),
        _bounds(findings, context),
        _chances(findings),
        _tokens(findings),
        _spectra(findings, context),
        _measures(findings, context),
    )
    return Section(
        anchor="risk",
        title="Closed-form risk",
        aside="from the derivative of every release, without an attack",
        blocks=[*_unconfirmed(findings), *_validations(findings, context)],
        sections=[part for part in parts if part is not None],
    )


def _unconfirmed(findings: Sequence[RiskFinding]) -> list[Block]:
    """Notes on scores whose derivative was not confirmed."""
    why = {
        Confirmation.WRONG: "its derivative is wrong, so that scores which read it have no value",
        Confirmation.INFINITE: "its derivative is infinite, so that scores which read it have no value",
        Confirmation.UNCHECKED: "its derivative could not be checked by differences of values",
    }
    told = [
        f"**{as_is(one.scenario)}**: {reason}: {as_is(one.note or 'no reason was kept')}."
        for check, reason in why.items()
        for one in findings
        if one.derivative is not None and one.derivative.check is check
    ]
    return [Text(style=Style.FINE, parts=list(dict.fromkeys(told)))] if told else []


def _scores(findings: Sequence[RiskFinding], name: str) -> list[tuple[RiskFinding, Score]]:
    return [(finding, score) for finding in findings for score in finding.scores if score.name == name]


def _prior(score: Score) -> str:
    return str(words.mapping(score.details.get("prior")).get("origin") or "")


def _detail(score: Score, key: str) -> Quantity:
    value = as_number(score.details.get(key))
    return Quantity(value=value, text=decimal(value))


def _with_badge(score: Score, unit: str = "") -> Words:
    found = quantity(score)
    if score.value is None:
        return found
    return (found, Badge(score.evidence), Small(unit)) if unit else (found, Badge(score.evidence))


def _ended(outcome: Outcome | None) -> Words:
    return MISSING if outcome is None else Hint(outcome.label.replace("_", " "), outcome.explanation)


def _bounds(findings: Sequence[RiskFinding], context: Context) -> Section | None:
    """The weakest bound of a scenario, by prior and unit."""
    groups: dict[tuple[str | None, str, str], list[Score]] = {}
    for finding, score in _scores(findings, "bayesian_cramer_rao"):
        groups.setdefault((finding.scenario, _prior(score), score.unit), []).append(score)
    rows: list[list[Words]] = []
    for (scenario, prior, unit), scores in groups.items():
        weakest = min(scores, key=lambda score: (score.value is None, score.value or 0.0))
        holds = weakest.details.get("holds_for_release")
        rows.append(
            [
                as_is(scenario),
                _with_badge(weakest, "" if unit == "pixel_rmse" else words.unit(unit, context.data_kind)),
                _detail(weakest, "prior_error"),
                decimal(as_number(weakest.details.get("noise_std"))),
                words.plain(holds) if isinstance(holds, bool) else MISSING,
                as_is(prior) or MISSING,
                as_is(weakest.note),
            ]
        )
    columns = [
        *labels("Scenario"),
        *numbers("Bound", "Prior alone", "Noise std"),
        *labels("Carried by the release", "Prior"),
        *labels("Meaning", why=True),
    ]
    caption = "Lower confidence limits, the weakest over the audited labels"
    title = "Lower bound on every attacker's average error"
    blocks = (Text(parts=[_BOUNDS]), Table(caption=caption, columns=columns, rows=rows))
    return Section(anchor="bounds", title=title, label="Bounds", blocks=blocks) if rows else None


def _chances(findings: Sequence[RiskFinding]) -> Section | None:
    """The largest chance to rebuild an example that differential privacy leaves in a scenario, by prior and error."""
    groups: dict[tuple[str | None, str, float | None], list[Score]] = {}
    for finding, score in _scores(findings, "reconstruction_probability"):
        # Of a prior of public examples these are counted by label, which stands in its words.
        drawn = words.mapping(score.details.get("prior")).get("examples") is not None
        key = (finding.scenario, "" if drawn else _prior(score), as_number(score.details.get("within")))
        groups.setdefault(key, []).append(score)
    rows: list[list[Words]] = []
    for (scenario, _, within), scores in groups.items():
        worst = max(scores, key=lambda score: -1.0 if score.value is None else score.value)
        rows.append(
            [
                as_is(scenario),
                _with_badge(worst),
                _detail(worst, "each_example"),
                _detail(worst, "kappa"),
                decimal(within),
                _privacy(worst),
                decimal(as_number(worst.details.get("rounds"))),
                as_is(_prior(worst)) or MISSING,
                as_is(worst.note),
            ]
        )
    columns = [
        *labels("Scenario"),
        *numbers("Chance", "Each example", "Blind guess", "Within"),
        *labels("Privacy"),
        *numbers("Releases seen"),
        *labels("Prior"),
        *labels("Meaning", why=True),
    ]
    caption = ("The largest chance over the audited labels ", Badge(Evidence.UPPER_BOUND))
    title = "Upper bound on every attacker's chance to rebuild an example"
    blocks = (Text(parts=[_CHANCES]), Table(caption=caption, columns=columns, rows=rows))
    return Section(anchor="chances", title=title, label="Chances", blocks=blocks) if rows else None


def _privacy(score: Score) -> str:
    """Differential privacy in print: "μ = 0.5 (ε = 1.93 at δ = 10⁻⁵)"."""
    mu, epsilon, delta = (as_number(score.details.get(key)) for key in ("mu", "epsilon", "delta"))
    return MISSING if mu is None else f"μ = {decimal(mu)} (ε = {decimal(epsilon)} at δ = {decimal(delta)})"


def _tokens(findings: Sequence[RiskFinding]) -> Section | None:
    """The bounds on decoders of single tokens, of the example of a scenario that they say leaks most; None without any."""
    by_scenario: dict[str, dict[str, list[Score]]] = {}
    for finding in findings:
        for score in finding.scores:
            by_scenario.setdefault(str(finding.scenario), {}).setdefault(score.name, []).append(score)
    rows = [_token_row(scenario, scores) for scenario, scores in by_scenario.items() if "token_error_bound" in scores]
    columns = [
        *labels("Scenario"),
        *numbers("Best decoder errs at most", "At the worst place", "No decoder errs less"),
        *numbers("Noise std for the threshold", "Threshold"),
        *labels("Places", "Prior"),
        *labels("Reason", why=True),
    ]
    caption = "Errors of decoders of a token, means over places, the smallest over the examples"
    blocks = (Text(parts=[_TOKENS]), Table(single=True, caption=caption, columns=columns, rows=rows))
    return (
        Section(anchor="tokens", title="How often a token is decoded", label="Tokens", blocks=blocks) if rows else None
    )


def _token_row(scenario: str, scores: dict[str, list[Score]]) -> list[Words]:
    best, least = (_smallest(scores.get(name, ())) for name in ("token_error_bound", "least_token_error"))
    noise = _smallest(scores.get("noise_std_for_token_error", ()), last=True)
    stated = noise or least
    prior = "" if stated is None else str(stated.details.get("under_prior", ""))
    shown: list[Words] = [
        MISSING if one is None or one.value is None else (quantity(one), Badge(one.evidence))
        for one in (best, least, noise)
    ]
    at_places = [
        value
        for score in scores.get("token_error_bound", ())
        for entry in words.sequence(score.details.get("per_place"))
        if (value := as_number(entry)) is not None
    ]
    looked = _looked_at(scores.get("token_error_bound", ()))
    told = next((one.note for one in (best, noise) if one is not None and one.value is None), "")
    return [
        as_is(scenario),
        shown[0],
        decimal(min(at_places, default=None)),
        *shown[1:],
        MISSING if noise is None else decimal(as_number(noise.details.get("threshold"))),
        looked,
        as_is(words.sentence(prior)) or MISSING,
        as_is(told),
    ]


def _looked_at(scores: Sequence[Score]) -> str:
    """The number of places of all examples that were looked at: "3 of 15"; without "of" where a record does not say."""
    known = [score for score in scores if score.value is not None]
    if not known:
        return MISSING
    places = sum(len(words.sequence(score.details.get("places"))) for score in known)
    totals = [as_number(score.details.get("of_places")) for score in known]
    return f"{places} of {sum(int(one or 0) for one in totals)}" if all(totals) else f"{places}"


def _smallest(scores: Sequence[Score], *, last: bool = False) -> Score | None:
    """The score with the smallest value, or the largest; one without a value where none has one."""
    known = sorted((one for one in scores if one.value is not None), key=lambda one: one.value or 0.0)
    return (known[-1] if last else known[0]) if known else next(iter(scores), None)


def _spectra(findings: Sequence[RiskFinding], context: Context) -> Section:
    """The distinct spectra: one an example where releases share A."""
    found: dict[str, Spectrum] = {}
    seen: set[tuple[str, ...]] = set()
    subjects: set[str] = set()
    measured = [one for one in findings if _eigenvalues(one.spectrum)]
    for finding in context.worst_first(measured) if len(measured) > MOST else measured:
        assert finding.spectrum is not None
        values, subject = _eigenvalues(finding.spectrum), str(finding.subject)
        key = (subject, f"{values[0]:.6e}", f"{values[-1]:.6e}", str(len(values)))
        if key not in seen:
            # Releases of one example that have spectra of their own (another protocol, clipping) are told apart by scenario.
            found[f"{subject}, {finding.scenario}" if subject in subjects else subject] = finding.spectrum
            seen.add(key)
            subjects.add(subject)
    blocks: list[Block] = [Text(parts=["The record holds no spectrum."])]
    if found:
        columns = [
            *labels("Example"),
            *numbers("Unknowns d", "Shared numbers P", "Rank", "Largest", "Smallest above zero"),
        ]
        caption = ("Eigenvalues of AᵀA ", Badge(Evidence.EXACT))
        drawn = {label: sorted(_eigenvalues(one), reverse=True) for label, one in islice(found.items(), MOST)}
        rows = Rows(list(found.items()), lambda one: _spectrum_row(*one))
        blocks = [
            Text(parts=[_SPECTRUM]),
            *spectrum_plot(drawn),
            Table(single=True, caption=caption, columns=columns, rows=rows, folded="more spectra"),
            Text(style=Style.FINE, parts=[_RANK]),
        ]
    title = "Directions that the update shows"
    return Section(
        anchor="spectrum", title=title, label="Spectrum" if found else None, blocks=[*blocks, *_routes(findings)]
    )


def _eigenvalues(spectrum: Spectrum | None) -> Sequence[float]:
    return () if spectrum is None else spectrum.eigenvalues or ()


def _spectrum_row(label: str, spectrum: Spectrum) -> list[Words]:
    ordered = sorted(_eigenvalues(spectrum), reverse=True)
    unseen = 0 if spectrum.rank is None else len(ordered) - spectrum.rank
    rank = count(spectrum.rank)
    ends = (ordered[0], ordered[min(spectrum.rank or len(ordered), len(ordered)) - 1])
    return [
        as_is(label),
        count(len(ordered)),
        count(spectrum.entries),
        (rank, Small(f"{unseen} directions unseen")) if unseen else rank,
        *(Quantity(value=end, text=decimal(end), evidence=Evidence.EXACT.value) for end in ends),
    ]


def _routes(findings: Sequence[RiskFinding]) -> list[Block]:
    """The routes of the derivatives: once, or by scenario where it differs."""
    by_scenario: dict[str, list[str]] = {}
    for finding in findings:
        if finding.spectrum is not None and finding.spectrum.route:
            by_scenario.setdefault(str(finding.scenario), []).append(finding.spectrum.route)
    by_route: dict[str, list[str]] = {}
    for scenario, routes in by_scenario.items():
        by_route.setdefault("; ".join(dict.fromkeys(routes)), []).append(scenario)
    if not by_route:
        return []
    told = [f"{route} ({', '.join(scenarios)})" for route, scenarios in by_route.items()]
    which = next(iter(by_route)) if len(by_route) == 1 else "; ".join(told)
    return [Text(style=Style.FINE, parts=[f"Derivatives of the release were taken by: {as_is(which)}."])]


def _measures(findings: Sequence[RiskFinding], context: Context) -> Section | None:
    """Every closed-form number of a release."""
    measured = [finding for finding in findings if finding.spectrum is not None]
    if sum(len(finding.scores) for finding in measured) > MOST_SCORES:
        measured = list(context.worst_first(measured))
    scores = [(finding, score) for finding in measured for score in finding.scores]
    rows = Rows(
        scores,
        lambda one: [
            as_is(context.title(one[0])),
            words.score_title(one[1], context.entry),
            _with_badge(one[1]),
            words.unit(one[1].unit, context.data_kind),
            between(one[1]),
            _ended(one[1].outcome),
            "" if one[1].value is not None else as_is(one[1].note),
        ],
    )
    columns = [
        *labels("Item", "Score"),
        *numbers("Value"),
        *labels("Unit", "Interval", "Outcome"),
        *labels("Reason", why=True),
    ]
    table = Table(
        columns=columns,
        rows=rows,
        shown=40,
        folded="more measures",
        dense=True,
        single=True,
        most=MOST_SCORES,
        rest=STAND_IN_RECORD,
    )
    fold = Fold(title=f"All {len(rows)} closed-form measures", blocks=[table], printed=True)
    return Section(anchor="measures", title="Closed-form measures", label=None, blocks=[fold]) if scores else None


def _validations(findings: Sequence[RiskFinding], context: Context) -> list[Block]:
    """The perfect attacker, in the order of the record."""
    found = [(one, one.validation) for one in findings if one.validation is not None]
    if not found:
        return []
    evidence = found[0][0].scores[0].evidence if found[0][0].scores else Evidence.ESTIMATE
    before, _ = context.similar
    columns = [
        *labels("Example", "Scenario"),
        *numbers(*map(words.score_name, before), words.sentence(context.error), evidence=evidence),
        *labels("Outcome"),
        *numbers("Steps"),
    ]
    rows = Rows(
        found,
        lambda pair: [
            as_is(pair[0].subject),
            as_is(pair[0].scenario),
            *(quantity(pair[0].score(name)) for name in before),
            quantity(pair[0].score("pixel_rmse")),
            _ended(pair[0].outcome),
            count(pair[1].steps),
        ],
    )
    blocks = (Text(style=Style.FINE, parts=[_VALIDATION]), Table(single=True, columns=columns, rows=rows))
    return [Fold(title=f"Validation: the perfect attacker on {len(found)} releases", blocks=blocks)]


def spectrum_plot(spectra: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Eigenvalues of AᵀA, largest first, one line an example; nothing without spectra."""
    shown = {label: values for label, values in spectra.items() if any(value > 0 for value in values)}

    def paint(every: Sequence[Axes]) -> None:
        from gradleak.reporting.drawing import look

        (axes,) = every
        for place, (label, eigenvalues) in enumerate(shown.items()):
            color, dash, _ = look(place)
            ranks, values = zip(*((rank, value) for rank, value in enumerate(eigenvalues, 1) if value > 0), strict=True)
            name = label if len(shown) <= 12 else None
            axes.plot(ranks, values, color=color, linestyle=dash, linewidth=1.5, label=name)
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_xlabel("direction of the input, from the most to the least visible")
        axes.set_ylabel("eigenvalue of AᵀA")

    alt = "Eigenvalues on a log scale, largest first, one line an example; the table below holds the largest and the smallest."
    figure = plot(paint, prefix="spectrum", title="Spectrum of AᵀA", alt=alt, size=(7.4, 3.7))
    return [figure] if shown else []


__all__ = ["page"]
