"""Profiles of the layers of a release, from Python: by several measures, with advice, and as findings for a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from gradleak.audits.base import Scenario, Site
from gradleak.audits.layers.audit import LayersAudit
from gradleak.audits.layers.measured import finding_of_advice, finding_of_profile, profile_of
from gradleak.audits.layers.rows import Told
from gradleak.core import Batch, HonestButCurious, Objective, Release, ThreatModel
from gradleak.data import Population
from gradleak.protocols import FedSGD
from gradleak.results import Citation, InputError
from gradleak.results.findings.layers import LayersFinding
from gradleak.risk import (
    LatentInformation,
    LayerAdvice,
    LayerMeasure,
    LayerProfile,
    Partition,
    Sensitivity,
    SubspaceDistance,
    VisibleLayers,
)
from gradleak.risk.layer_advice import of_attribute
from gradleak.risk.layer_exposure import Grouping


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerProfiles:
    """Profiles of the layers of one release by several measures, and the advice.

    Attributes:
        profiles: by measure, over the layers or groups.
        visible: by measure, over the sets of visible tensors; empty where none were asked for.
        shuffled: by measure of an attribute, over the layers, with the attributes of other rows: what chance gives.
        advice: which layers to protect first, and which the budget holds.
        controls: by measure of an attribute, whether it found nothing on shuffled attributes; None where it gave no number.
        audit: what was measured, and on how many rows.
        seed: of everything that was drawn.
        findings: all of it as a record holds it.
    """

    profiles: Mapping[str, LayerProfile]
    visible: Mapping[str, LayerProfile]
    shuffled: Mapping[str, LayerProfile]
    advice: LayerAdvice
    controls: Mapping[str, bool | None]
    audit: LayersAudit = field(repr=False)
    seed: int
    findings: Sequence[LayersFinding] = field(repr=False)

    @property
    def sources(self) -> list[Citation]:
        """The sources of the measures and of what they are made of, once each."""
        sources = [part for measure in self.audit.measures for part in (measure, *measure.layer_parts)]
        found = {one.key: one for source in sources for one in getattr(source, "citations", ())}
        return list(found.values())


def profile_layers(
    model: nn.Module | Objective,
    rows: Population | Batch | tuple[Tensor, Tensor],
    measures: Sequence[LayerMeasure] | None = None,
    *,
    told: Told | str = Told.SENSITIVE,
    by: Grouping = Partition.LAYER,
    release: Release | None = None,
    loss: str | Callable[[Any, Tensor], Tensor] = "cross_entropy",
    mode: str = "eval",
    threat: ThreatModel | None = None,
    visible: Mapping[str, VisibleLayers] | None = None,
    audit: LayersAudit | None = None,
    seed: int = 0,
    max_bytes: int = 2**30,
) -> LayerProfiles:
    """Profiles of the layers of a release by several measures on the same rows, and which layers to protect first.

    What `[layers.NAME]` of a plan does, with the same numbers for the same seeds. Measures of an attribute are taken a second
    time with the attributes of other rows, which must give nothing.

    Args:
        model: the client's model, or its loss at the parameters that the update is shared for.
        rows: private examples, with the attribute as their `sensitive`.
        measures: by default `Sensitivity`, and where the rows carry an attribute `LatentInformation` and, of two values,
            `SubspaceDistance`.
        told: whether the attribute ("sensitive"), the labels ("label") or the inputs ("inputs") are told from gradients.
        by: `tensor`, `layer`, `Consecutive` or named groups.
        release: protocol and defenses; default FedSGD without defenses.
        loss: of a module, as `audit` takes it.
        mode: of a module, "eval" or "train".
        threat: what the adversary of an inversion knows; default `HonestButCurious()`.
        visible: sets of visible tensors, for instance `what_ifs(...)`: what if only these are seen.
        audit: everything by itself (batches, how many rows and releases, budget); measures, told, by and visible are then
            those of it, and `rows` has to be its own.
        seed: of everything that is drawn.
        max_bytes: memory budget.

    Returns:
        The profiles, the advice, and the controls; `findings_of_layers` makes findings of them, and `record_of` a record.

    Raises:
        GradleakError: in one line, where rows, model, measures and release do not fit together.

    **Cost**: that of the measures; of those of an attribute twice. A measure that cannot be taken has scores without a value.

    Examples:
        >>> import torch
        >>> from gradleak.models import mlp
        >>> rows = Batch(torch.rand(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
        >>> model = mlp(features=4, hidden=(3,), classes=2, activation="tanh")
        >>> found = profile_layers(model, rows, [Sensitivity()])
        >>> list(found.profiles["mean_sensitivity"].scores)
        ['0', '2']
    """
    objective = model if isinstance(model, Objective) else Objective.from_module(model, loss=loss, mode=mode)
    given = Batch(*rows) if isinstance(rows, tuple) else rows
    if threat is not None and not isinstance(threat, ThreatModel):
        raise InputError(f"threat: expected a threat model, got {threat!r}")
    if audit is None:
        chosen = _measures(given) if measures is None else list(measures)
        audit = LayersAudit(rows=given, measures=chosen, told=told, by=by, visible=dict(visible or {}))
    elif audit.rows is not given or measures is not None or visible is not None:
        raise InputError(
            "audit: expected its own rows, and no measures or visible sets beside it; state them in the audit"
        )
    audit = replace(audit, name="layers", scenarios=None)
    through = Scenario(name="release", release=release or Release(FedSGD()), examples=())
    site = Site(
        name="layers",
        seed=seed,
        objective=objective,
        batches=(),
        scenarios=[through],
        threat=threat or HonestButCurious(),
        max_bytes=max_bytes,
    )
    audit.rehearse(site, [through.release], seed=seed)
    work = audit.work(site, through.name, seed=seed)
    taken = {one.blank.measure: one.take(site) for one in work}
    findings = [finding for one in work for finding in one.findings(taken[one.blank.measure])]
    controls = {one.measure: one.control.passed for one in findings if one.control is not None}
    # As the plan does it: by what a record holds.
    own = {label: profile_of(next(one for one in findings if one.measure == label)) for label in taken}
    trusted = [own[label] for label, one in taken.items() if not one.refusal and controls.get(label) is not False]
    return LayerProfiles(
        profiles={label: one.profile for label, one in taken.items()},
        visible={label: one.seen for label, one in taken.items() if one.seen is not None},
        shuffled={label: one.shuffled for label, one in taken.items() if one.shuffled is not None},
        advice=audit.advice(trusted or list(own.values()), objective, through.release),
        controls=controls,
        audit=audit,
        seed=seed,
        findings=[*findings, *audit.conclude(site, findings)],
    )


def findings_of_layers(
    results: LayerProfiles | Mapping[str, LayerProfiles], *, audit: str = "layers"
) -> list[LayersFinding]:
    """The findings of profiles that were already taken: what `record_of` makes a record of.

    Args:
        results: one result; or results by scenario, the release in words ("undefended", "signs"), which stand side by side.
        audit: what to call the audit of layers.

    Raises:
        InputError: without a result.
    """
    given = {"release": results} if isinstance(results, LayerProfiles) else dict(results)
    if not given:
        raise InputError("findings_of_layers: expected at least one result, got none")
    return [
        finding.but(
            item=finding.item.replace(f"{finding.scenario}/{finding.audit}/", f"{scenario}/{audit}/", 1),
            audit=audit,
            scenario=scenario,
        )
        for scenario, found in given.items()
        for finding in found.findings
    ]


def findings_of_profiles(
    profiles: Sequence[LayerProfile],
    advice: LayerAdvice | None = None,
    *,
    audit: str = "layers",
    scenario: str = "release",
    grouping: str = "by layer",
) -> list[LayersFinding]:
    """The findings of profiles that measures of layers gave by themselves: what `record_of` makes a record of.

    Args:
        profiles: of different measures, over the same groups of tensors.
        advice: that follows from them; None for none.
        audit: what to call them together.
        scenario: what to call the release.
        grouping: of the tensors, in words.
    """
    found = [
        finding_of_profile(
            one,
            LayersFinding(
                item=f"{scenario}/{audit}/{one.measure}",
                audit=audit,
                scenario=scenario,
                measure=one.measure,
                grouping=grouping,
                about="latent"
                if any(of_attribute(one.measure, score) for score in one.scores.values())
                else "original",
            ),
        )
        for one in profiles
    ]
    if advice is not None:
        empty = LayersFinding(item=f"{scenario}/{audit}/advice", audit=audit, scenario=scenario)
        found.append(finding_of_advice(advice, empty))
    return found


def _measures(rows: Population | Batch) -> list[LayerMeasure]:
    """Measures that fit every model and these rows."""
    found: list[LayerMeasure] = [Sensitivity()]
    if rows.sensitive is None:
        return found
    found.append(LatentInformation())
    return [*found, SubspaceDistance()] if len(rows.sensitive.unique()) == 2 else found
