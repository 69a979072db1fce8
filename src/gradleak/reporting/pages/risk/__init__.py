"""The page on closed-form risk: predictions, bounds on every attacker, spectra, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradleak.reporting import words
from gradleak.reporting.blocks import (
    Badge,
    Block,
    Column,
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
)
from gradleak.reporting.context import Context
from gradleak.reporting.numerals import MISSING, Quantity, as_number, between, count, decimal, quantity
from gradleak.reporting.pages.risk.noise import noise_section
from gradleak.results import Evidence, Finding, Outcome, Score
from gradleak.results.findings.risk import Confirmation, RiskFinding

BOUNDS_TITLE = "Lower bound on every attacker's average error"
CHANCES_TITLE = "How often any attacker can rebuild an example"


def page(findings: Sequence[RiskFinding], context: Context) -> Section | None:
    """The section on closed-form risk, None where none was computed."""
    if not findings:
        return None
    parts = (
        noise_section(findings, context),
        _bounds(findings, context),
        _chances(findings),
        _spectra(findings),
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
    unchecked = [
        f"**{as_is(one.scenario)}**: its derivative could not be checked by differences of values: "
        f"{as_is(one.note or 'no reason was kept')}."
        for one in findings
        if one.derivative is not None and one.derivative.check is Confirmation.UNCHECKED
    ]
    wrong = [
        f"**{as_is(one.scenario)}**: its derivative is wrong, so that scores which read it have no value: {as_is(one.note)}."
        for one in findings
        if one.derivative is not None and one.derivative.check is Confirmation.WRONG
    ]
    told = list(dict.fromkeys([*wrong, *unchecked]))
    return [Text(style=Style.FINE, parts=told)] if told else []


def _scores(findings: Sequence[RiskFinding], name: str) -> list[tuple[Finding, Score]]:
    return [(finding, score) for finding in findings for score in finding.scores if score.name == name]


def _prior(score: Score) -> str:
    """The prior in words, "" if not stated."""
    prior = score.details.get("prior")
    return str(prior.get("origin") or "") if isinstance(prior, Mapping) else ""


def _drawn(score: Score) -> bool:
    """True if the prior is made of public examples."""
    prior = score.details.get("prior")
    return isinstance(prior, Mapping) and prior.get("examples") is not None


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
    if not groups:
        return None
    rows: list[list[Words]] = []
    for (scenario, prior, unit), scores in groups.items():
        known = [score for score in scores if score.value is not None]
        weakest = min(known, key=lambda score: score.value or 0.0) if known else scores[0]
        holds = weakest.details.get("holds_for_release")
        rows.append(
            [
                as_is(scenario),
                _with_badge(weakest, "" if unit == "pixel_rmse" else words.unit(unit, context.data_kind)),
                _detail(weakest, "prior_error"),
                decimal(as_number(weakest.details.get("noise_std"))),
                {True: "yes", False: "no"}.get(holds, MISSING) if isinstance(holds, bool) else MISSING,
                as_is(prior) or MISSING,
                as_is(weakest.note),
            ]
        )
    return Section(
        anchor="bounds",
        title=BOUNDS_TITLE,
        label="Bounds",
        blocks=[
            Text(
                parts=[
                    (
                        "The van Trees inequality bounds the mean error of **every** attacker over a stated Gaussian prior "
                        "on the private inputs, for one release under Gaussian noise. It is an **average over that prior, "
                        "not a worst case**: single examples may leak far more, several releases of the same data leak "
                        "more, and an attacker with a sharper prior may do better. A verdict reads it only with evidence ",
                        Badge(Evidence.LOWER_BOUND),
                        ", for noise that the release carries.",
                    )
                ]
            ),
            Table(
                caption="Lower confidence limits, the weakest over the audited labels",
                columns=[
                    Column(label="Scenario", heading=True),
                    Column(label="Bound", numeric=True),
                    Column(label="Prior alone", numeric=True),
                    Column(label="Noise std", numeric=True),
                    Column(label="Carried by the release"),
                    Column(label="Prior"),
                    Column(label="What it says", why=True),
                ],
                rows=rows,
            ),
        ],
    )


def _chances(findings: Sequence[RiskFinding]) -> Section | None:
    """The largest chance to rebuild an example that differential privacy leaves in a scenario, by prior and error."""
    groups: dict[tuple[str | None, str, float | None], list[Score]] = {}
    for finding, score in _scores(findings, "reconstruction_probability"):
        # The public examples are counted by label, which stands in the words of the prior.
        prior, within = "" if _drawn(score) else _prior(score), as_number(score.details.get("within"))
        groups.setdefault((finding.scenario, prior, within), []).append(score)
    if not groups:
        return None
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
    return Section(
        anchor="chances",
        title=CHANCES_TITLE,
        label="Chances",
        blocks=[
            Text(
                parts=[
                    "Differential privacy bounds the chance of every attacker, who may know all else, to come within the "
                    "stated error of an example (reconstruction robustness): Φ(μ + Φ⁻¹(κ)), κ the chance of a blind guess "
                    "under the stated prior. It is an average over that prior and over the noise; who knows more about an "
                    "example, or sees more releases of it, may do better. Heuristic defenses have no such number."
                ]
            ),
            Table(
                caption=("The largest chance over the audited labels ", Badge(Evidence.UPPER_BOUND)),
                columns=[
                    Column(label="Scenario", heading=True),
                    Column(label="Chance", numeric=True),
                    Column(label="Of each example", numeric=True),
                    Column(label="Blind guess", numeric=True),
                    Column(label="Within", numeric=True),
                    Column(label="Privacy"),
                    Column(label="Releases", numeric=True),
                    Column(label="Prior"),
                    Column(label="What it says", why=True),
                ],
                rows=rows,
            ),
        ],
    )


def _privacy(score: Score) -> str:
    """Differential privacy in print: "μ = 0.5 (ε = 1.93 at δ = 10⁻⁵)"."""
    mu, epsilon, delta = (as_number(score.details.get(key)) for key in ("mu", "epsilon", "delta"))
    return MISSING if mu is None else f"μ = {decimal(mu)} (ε = {decimal(epsilon)} at δ = {decimal(delta)})"


def _spectra(findings: Sequence[RiskFinding]) -> Section:
    """The distinct spectra: one an example where releases share A."""
    rows: list[list[Words]] = []
    curves: dict[str, list[float]] = {}
    seen: set[tuple[str, ...]] = set()
    for finding in findings:
        spectrum = finding.spectrum
        if spectrum is None or not spectrum.eigenvalues:
            continue
        values, subject = list(spectrum.eigenvalues), str(finding.subject)
        key = (subject, f"{values[0]:.6e}", f"{values[-1]:.6e}", str(len(values)))
        if key in seen:
            continue
        # Releases of one example that have spectra of their own (another protocol, clipping) are told apart by scenario.
        another = any(subject == one[0] for one in seen)
        seen.add(key)
        label = f"{subject}, {finding.scenario}" if another else subject
        curves[label] = values = sorted(values, reverse=True)
        unseen = 0 if spectrum.rank is None else len(values) - spectrum.rank
        rank = count(spectrum.rank)
        rows.append(
            [
                as_is(label),
                count(len(values)),
                count(spectrum.entries),
                (rank, Small(f"{unseen} directions unseen")) if unseen else rank,
                _number(values[0]),
                _number(values[min(spectrum.rank or len(values), len(values)) - 1]),
            ]
        )

    blocks: list[Block] = [Text(parts=["The record holds no spectrum."])]
    if rows:
        blocks = [
            Text(
                parts=[
                    "A is the derivative of the release with respect to the input. An eigenvalue λ of AᵀA says how strongly "
                    "one direction of the input shows in the update: noise of standard deviation σ moves a reconstruction "  # noqa: RUF001
                    "by σ/√λ along it. **Large eigenvalues leak; small ones are where noise protects**; a direction with "  # noqa: RUF001
                    "λ = 0 cannot be seen at all."
                ]
            ),
            Figure(
                draw=lambda: spectrum_plot(curves),
                alt="Eigenvalues on a log scale, largest first, one line an example; the table below holds the largest and "
                "the smallest.",
            ),
            Table(
                single=True,
                caption=("Eigenvalues of AᵀA ", Badge(Evidence.EXACT)),
                columns=[
                    Column(label="Example", heading=True),
                    Column(label="Unknowns d", numeric=True),
                    Column(label="Shared numbers P", numeric=True),
                    Column(label="Rank", numeric=True),
                    Column(label="Largest", numeric=True),
                    Column(label="Smallest above zero", numeric=True),
                ],
                rows=rows,
            ),
            Text(
                style=Style.FINE,
                parts=[
                    "Full rank means that without noise the input is determined by the update, at least near the truth. Rank "
                    "counts eigenvalues above d · machine precision · λmax."
                ],
            ),
        ]
    return Section(
        anchor="spectrum",
        title="Which directions the update shows",
        label="Spectrum",
        blocks=[*blocks, *_routes(findings)],
    )


def _number(value: float) -> Quantity:
    return Quantity(value=value, text=decimal(value), evidence=Evidence.EXACT.value)


def _routes(findings: Sequence[RiskFinding]) -> list[Block]:
    """Routes by which the derivatives were computed: once, or by scenario where it differs."""
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
    rows: list[list[Words]] = [
        [
            as_is(context.title(finding)),
            words.score_name(score.name, context.entry) + words.score_setting(score.details),
            _with_badge(score),
            words.unit(score.unit, context.data_kind),
            between(score),
            _ended(score.outcome),
            "" if score.value is not None else as_is(score.note),
        ]
        for finding in findings
        if finding.spectrum is not None
        for score in finding.scores
    ]
    if not rows:
        return None
    columns = [
        Column(label="Item", heading=True),
        Column(label="Score"),
        Column(label="Value", numeric=True),
        Column(label="Unit"),
        Column(label="Interval"),
        Column(label="Outcome"),
        Column(label="Why there is none", why=True),
    ]
    return Section(
        anchor="measures",
        title="Closed-form measures",
        label=None,
        blocks=[
            Fold(
                title=f"All {len(rows)} closed-form measures",
                blocks=[Table(columns=columns, rows=rows, shown=40, folded="more measures", dense=True, single=True)],
                printed=True,
            )
        ],
    )


def _validations(findings: Sequence[RiskFinding], context: Context) -> list[Block]:
    """The perfect attacker, in the order of the record."""
    found = [(one, one.validation) for one in findings if one.validation is not None]
    if not found:
        return []
    evidence = found[0][0].scores[0].evidence if found[0][0].scores else Evidence.ESTIMATE
    error = context.error[:1].upper() + context.error[1:]
    return [
        Fold(
            title=f"Validation: the perfect attacker on {len(found)} releases",
            blocks=[
                Text(
                    style=Style.FINE,
                    parts=[
                        "It starts at the truth and shows where the best fit to the noisy update lies. No adversary can run "
                        "it."
                    ],
                ),
                Table(
                    single=True,
                    columns=[
                        Column(label="Example", heading=True),
                        Column(label="Scenario"),
                        Column(label="PSNR", numeric=True, evidence=evidence),
                        Column(label=error, numeric=True, evidence=evidence),
                        Column(label="Outcome"),
                        Column(label="Steps", numeric=True),
                    ],
                    rows=[
                        [
                            as_is(one.subject),
                            as_is(one.scenario),
                            quantity(one.score("psnr")),
                            quantity(one.score("pixel_rmse")),
                            _ended(one.outcome),
                            count(validation.steps),
                        ]
                        for one, validation in found
                    ],
                ),
            ],
        )
    ]


def spectrum_plot(spectra: Mapping[str, Sequence[float]]) -> str:
    """Eigenvalues of AᵀA, one line an example, as SVG; "" without spectra."""
    shown = {label: values for label, values in spectra.items() if any(value > 0 for value in values)}
    if not shown:
        return ""
    import matplotlib

    from gradleak.reporting.drawing import DASHES, SERIES, STYLE, as_svg, finish, new_figure

    with matplotlib.rc_context(STYLE):
        figure, axes = new_figure(7.4, 3.7)
        for place, (label, eigenvalues) in enumerate(shown.items()):
            ranks, values = zip(*((rank, value) for rank, value in enumerate(eigenvalues, 1) if value > 0), strict=True)
            axes.plot(
                ranks,
                values,
                color=SERIES[place % len(SERIES)],
                linestyle=DASHES[(place // len(SERIES)) % len(DASHES)],
                linewidth=1.5,
                label=label if len(shown) <= 12 else None,
            )
        axes.set_yscale("log")
        axes.set_xlim(0, None)
        axes.set_xlabel("direction of the input, from the most to the least visible")
        axes.set_ylabel("eigenvalue of AᵀA")
        finish(figure, axes)
        return as_svg(
            figure,
            prefix="spectrum",
            title="Spectrum of AᵀA",
            description="Eigenvalues on a log scale, largest first, one line an example; the table below holds the "
            "largest and the smallest.",
        )


__all__ = ["BOUNDS_TITLE", "CHANCES_TITLE", "page"]
