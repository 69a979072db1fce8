"""Where a release leaks, from Python: profiles of several measures, advice, and a record that reports are made from."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from torch import Tensor, nn

from gradleak.auditing.items import Line
from gradleak.auditing.layer_audit import LayerAudit
from gradleak.auditing.layer_reach import VISIBLE
from gradleak.auditing.layer_rows import Told
from gradleak.auditing.layer_task import advised, measured, profiles_of
from gradleak.auditing.verdict import Thresholds, judge
from gradleak.core import Batch, Objective, Release
from gradleak.data import Population
from gradleak.protocols import FedSGD
from gradleak.results import InputError, Record
from gradleak.results.record import SCHEMA
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
from gradleak.risk.layer_groups import Grouping


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerProfiles:
    """What several measures say of the layers of one release.

    Attributes:
        profiles: by measure, over the layers or groups.
        visible: by measure, over the sets of visible tensors; empty where none were asked for.
        shuffled: by measure of an attribute, over the layers, with the attributes of other rows: what chance gives.
        advice: which layers to protect first, and which the budget holds.
        controls: by measure of an attribute, whether it found nothing on shuffled attributes; None where it gave no number.
        audit: what was measured, and on how many rows.
        seed: of everything that was drawn.
    """

    profiles: Mapping[str, LayerProfile]
    visible: Mapping[str, LayerProfile]
    shuffled: Mapping[str, LayerProfile]
    advice: LayerAdvice
    controls: Mapping[str, bool | None]
    audit: LayerAudit = field(repr=False)
    seed: int
    _lines: Sequence[Line] = field(repr=False)

    def lines(self, setting: str, scenario: str) -> list[Line]:
        """JSON-ready lines of a record: an item a layer and measure, the controls, the advice. No row is in them.

        Args:
            setting: what to call the audit.
            scenario: what to call the release.
        """
        return [_called(line, setting, scenario) for line in self._lines]


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
    visible: Mapping[str, VisibleLayers] | None = None,
    audit: LayerAudit | None = None,
    seed: int = 0,
) -> LayerProfiles:
    """Where a release leaks: profiles of the layers by several measures on the same rows, and which layers to protect first.

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
        visible: sets of visible tensors, for instance `what_ifs(...)`: what if only these are seen.
        audit: everything by itself (batches, how many rows and releases, budget, what the adversary of an inversion knows);
            rows, measures, told, by and visible are then those of it, and `rows` has to be its own.
        seed: of everything that is drawn.

    Returns:
        The profiles, the advice, and the controls; `record_layers` makes a record of them.

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
    if audit is None:
        chosen = _measures(given) if measures is None else list(measures)
        audit = LayerAudit(rows=given, measures=chosen, told=told, by=by, visible=dict(visible or {}))
    elif audit.rows is not given or measures is not None or visible is not None:
        raise InputError(
            "audit: expected its own rows, and no measures or visible sets beside it; state them in the audit"
        )
    through = release or Release(FedSGD())
    audit.check(objective, [through], seed=seed)
    place = ("layers", "release")
    lines: list[Line] = []
    for label in audit.labels:
        lines += measured(audit, label, objective, through, place=place, seed=seed, null=True)
    layers = [line for line in lines if line["kind"] == "layers"]
    taken = profiles_of(line for line in layers if line["grouping"] != VISIBLE)
    seen = profiles_of(line for line in layers if line["grouping"] == VISIBLE)
    controls = {str(line["measure"]): line["passed"] for line in lines if line["kind"] == "control"}
    refused = {str(line["measure"]) for line in layers if line["status"] == "refused" and line["grouping"] != VISIBLE}
    trusted = [one for one in taken if one.measure not in refused and controls.get(one.measure) is not False]
    lines += advised(audit, trusted or taken, objective, place)
    return LayerProfiles(
        profiles={profile.measure: profile for profile in taken},
        visible={profile.measure: profile for profile in seen},
        shuffled={profile.measure: profile for profile in profiles_of(_shuffled(layers))},
        advice=audit.advice(trusted or taken, objective),
        controls=controls,
        audit=audit,
        seed=seed,
        _lines=lines,
    )


def record_layers(
    results: LayerProfiles | Mapping[str, LayerProfiles],
    *,
    name: str = "where it leaks",
    setting: str = "layers",
    thresholds: Thresholds | None = None,
) -> Record:
    """The record of profiles that were already taken, with their verdicts: what `write_html` and its like take.

    Args:
        results: one result; or results by scenario, the release in words ("undefended", "signs"), which stand side by side.
        name: of the record.
        setting: what to call the audit of layers.
        thresholds: of verdicts on other things; printed in the record.

    Returns:
        The record, in memory.

    Raises:
        InputError: without a result.
    """
    given = {"release": results} if isinstance(results, LayerProfiles) else dict(results)
    if not given:
        raise InputError("record_layers: expected at least one result, got none")
    groups = {f"layers/{scenario}/{setting}": found.lines(setting, scenario) for scenario, found in given.items()}
    lines = [line for group in groups.values() for line in group]
    limits = thresholds or Thresholds()
    groups["verdicts"] = [{"type": "verdict", **verdict.to_dict()} for verdict in judge(lines, limits)]
    sources = {
        citation.key: citation
        for found in given.values()
        for measure in found.audit.measures
        for source in (measure, *measure.layer_parts)
        for citation in getattr(source, "citations", ())
    }
    return Record(
        run={
            "type": "run",
            "schema": SCHEMA,
            "gradleak": metadata.version("gradleak"),
            "name": name,
            "seed": next(iter(given.values())).seed,
            "thresholds": {"advantage": limits.advantage},
            "groups": list(groups),
            "versions": {part: metadata.version(part) for part in ("torch", "numpy", "scipy")}
            | {"python": platform.python_version()},
            "citations": [{"key": one.key, "text": one.text(), "bibtex": one.bibtex()} for one in sources.values()],
        },
        lines=tuple(
            {**line, "group": group, "line": place, "of": len(rows)}
            for group, rows in groups.items()
            for place, line in enumerate(rows)
        ),
    )


def _measures(rows: Population | Batch) -> list[LayerMeasure]:
    """What fits every model and these rows."""
    found: list[LayerMeasure] = [Sensitivity()]
    if rows.sensitive is None:
        return found
    found.append(LatentInformation())
    return [*found, SubspaceDistance()] if len(rows.sensitive.unique()) == 2 else found


def _shuffled(lines: Sequence[Line]) -> list[Line]:
    return [line | {"score": line["null"]} for line in lines if "null" in line]


def _called(line: Line, setting: str, scenario: str) -> Line:
    """The line under other names."""
    named = dict(line)
    for key in ("item", "control_of"):
        if key in named:
            named[key] = str(named[key]).replace("release/layers/", f"{scenario}/{setting}/", 1)
    for key, value in (("setting", setting), ("layers_name", setting), ("scenario", scenario)):
        if named.get(key) is not None:
            named[key] = value
    return named


__all__ = ["LayerProfiles", "profile_layers", "record_layers"]
