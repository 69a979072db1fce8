"""An audit of layers asks its measures what it has to know of them, and knows none by its type."""

from __future__ import annotations

import pytest
from tests.auditing.small_population import two_groups
from tests.audits.layers.own_measure import Entries

import gradleak.risk
from gradleak.auditing import record_of
from gradleak.audits.base import Scenario, Site
from gradleak.audits.layers import LayersAudit, findings_of_layers, profile_layers
from gradleak.core import Objective, Release, derive_generator
from gradleak.defenses import LayerNoise
from gradleak.models import mlp
from gradleak.protocols import FedSGD
from gradleak.results import Outcome, PlanError
from gradleak.risk import LayerMeasure, Sensitivity, VisibleLayers


def _site(*releases: Release) -> Site:
    objective = Objective.from_module(mlp(features=6, hidden=(8,), classes=2, generator=derive_generator(0, "model")))
    scenarios = [
        Scenario(name=f"scenario {place}", release=release, examples=()) for place, release in enumerate(releases)
    ]
    return Site(name="small", seed=0, objective=objective, batches=(), scenarios=scenarios)


def test_noise_on_a_layer_that_is_not_there_is_refused_beside_a_release_that_works() -> None:
    """`Sensitivity` reads the mean alone and would never meet the noise."""
    audit = LayersAudit(
        rows=two_groups(generator=derive_generator(0, "rows")), measures=[Sensitivity()], count=20, releases=2
    )
    plain, noisy = Release(FedSGD()), Release(FedSGD(), [LayerNoise(std={"0": 0.1})])
    audit.check(_site(plain, noisy))
    with pytest.raises(PlanError, match="expected names of layers, got '9'; the update has '0', '2'"):
        audit.check(_site(plain, Release(FedSGD(), [LayerNoise(std={"9": 0.1})])))


def test_a_measure_of_somebody_else_goes_through_the_whole_audit() -> None:
    site, rows = _site(Release(FedSGD())), two_groups(generator=derive_generator(0, "rows"))
    objective = site.objective
    visible = {"head": VisibleLayers.of(objective, "2"), "first": VisibleLayers.of(objective, "0")}
    audit = LayersAudit(rows=rows, measures=[Entries(), Sensitivity()], count=20, releases=2, visible=visible)
    audit.check(site)
    assert list(audit.labels) == ["entries", "mean_sensitivity"]
    tasks = list(audit.tasks(site))
    assert tasks[0].blank.about == "original"
    assert sum(task.cost for task in tasks) > 3.0
    found = profile_layers(objective, rows, audit=audit)
    # There is no attribute to shuffle.
    assert not found.shuffled
    last = found.profiles["entries"].scores["2"].value
    assert last is not None
    assert last > 0
    assert found.visible["entries"].scores["head"].value == last
    lost = found.visible["entries"].scores["first"]
    assert (lost.name, lost.value, lost.outcome) == ("entries", None, Outcome.UNSUPPORTED)
    assert "expected the last bias" in lost.note
    record = record_of(findings_of_layers(found))
    assert {verdict.verdict for verdict in record.verdicts} == {"inconclusive"}


def test_two_of_a_name_are_told_apart_by_number_where_nothing_else_does() -> None:
    rows = two_groups(generator=derive_generator(0, "rows"))
    audit = LayersAudit(
        rows=rows, measures=[Entries(), Entries(few=1), Sensitivity(), Sensitivity(norm="one")], count=20
    )
    assert list(audit.labels) == [
        "entries",
        "entries (2)",
        "mean_sensitivity (frobenius)",
        "mean_sensitivity (one)",
    ]


def test_every_measure_of_the_package_is_of_the_family_and_says_what_is_needed_of_it() -> None:
    family = [
        item
        for item in vars(gradleak.risk).values()
        if isinstance(item, type) and issubclass(item, LayerMeasure) and not item.__abstractmethods__
    ]
    told = {item.__name__ for item in family if item.reads_told}
    assert told == {"LatentInformation", "MINE", "NeighborInformation", "SubspaceDistance"}
    assert {item.__name__ for item in family if item.needs_values} == {"LatentInformation", "SubspaceDistance"}
    assert [item.__name__ for item in family if item.most_values is not None] == ["SubspaceDistance"]
    some = {item.__name__ for item in family if not item.needs_every_layer} - told
    assert some == {"OriginalInformation", "Sensitivity"}
    assert len(family) >= 15
