"""Layers in a plan: a finding a measure, controls, advice, verdicts, resume; the same numbers from Python."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.audits.layers.own_measure import Entries

import gradleak as gl
from gradleak.auditing import Plan, build_plan, estimate, load_plan, run_plan
from gradleak.audits.base import Site
from gradleak.audits.layers import LayersAudit
from gradleak.audits.layers.measured import Measured, Reading, profile_of
from gradleak.audits.layers.reach import reaches
from gradleak.core import Objective, derive_generator, derive_seed
from gradleak.data import Population
from gradleak.models import mlp
from gradleak.results import Evidence, InputError, Leakier, Outcome, PlanError, Record, Score, Status, VerdictKind
from gradleak.results.findings.layers import VISIBLE, LayersFinding
from gradleak.risk import LayerProfile
from gradleak.training import layer_gradients

ROOT = Path(__file__).parents[3]
GROUPS = {"use": "tests.auditing.small_population:two_groups"}
TABLE = {"use": "tests.auditing.own_pairs:small_table"}
FOREST = {"use": "RandomForest", "trees": 15}
LATENT = {"use": "LatentInformation", "classifier": FOREST, "folds": 2, "resamples": 100}
SUBSPACE = {"use": "SubspaceDistance", "dimension": 2, "permutations": 19}
POSTERIOR = {"use": "LinearizedPosteriorError", "noise_std": 0.1, "prior_std": 0.3}
MEASURES: list[dict[str, Any]] = [
    {"use": "Sensitivity"},
    {"use": "Sensitivity", "norm": "inf"},
    POSTERIOR,
    LATENT,
    SUBSPACE,
]
SECTION: dict[str, Any] = {"data": GROUPS, "count": 300, "releases": 6, "visible": ["last layer"], "measures": MEASURES}


def content(section: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A plan of one section of layers against two releases."""
    return {
        "name": "layers",
        "seed": 3,
        "model": {"use": "mlp", "features": 6, "hidden": [8], "classes": 2, "activation": "tanh"},
        "layers": {"group": SECTION | (section or {})},
        "scenarios": [{"name": "plain"}, {"name": "noise", "defenses": [{"use": "LayerNoise", "std": {"0": 5.0}}]}],
    } | changes


def plan(section: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return build_plan(content(section, **changes), folder=ROOT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("layers")
    run_plan(plan(), place, jobs=1)
    return place


@pytest.fixture(scope="module")
def record(folder: Path) -> Record:
    return Record.load(folder)


def audit_of(loaded: Plan, name: str = "group") -> LayersAudit:
    (found,) = [audit for audit in loaded.audits if isinstance(audit, LayersAudit) and audit.name == name]
    return found


def seed_of(loaded: Plan) -> int:
    return derive_seed(loaded.site.seed, "layers", "group")


def layers_of(record: Record) -> list[LayersFinding]:
    return [one for one in record.findings if isinstance(one, LayersFinding)]


def measured(record: Record, measure: str, scenario: str = "plain", *, visible: bool = False) -> LayersFinding:
    (found,) = [
        one for one in layers_of(record)
        if one.control is None and (one.measure, one.scenario) == (measure, scenario)
        and (one.grouping == VISIBLE) is visible
    ]  # fmt: skip
    return found


def scores(record: Record, measure: str, scenario: str = "plain", *, visible: bool = False) -> Mapping[str, Score]:
    return measured(record, measure, scenario, visible=visible).by_layer


def number(score: Score) -> float:
    assert score.value is not None
    return score.value


def test_every_measure_has_a_score_for_every_layer_and_set(record: Record) -> None:
    assert record.complete
    names = ["mean_sensitivity (frobenius)", "mean_sensitivity (inf)", "linearized_posterior_error", "latent_information",
             "subspace_distance"]  # fmt: skip
    for name in names:
        assert list(scores(record, name)) == ["0", "2"]
        assert list(scores(record, name, visible=True)) == ["last layer"]
    one = measured(record, "latent_information")
    assert one.item == "plain/group/latent_information"
    assert (one.audit, one.about, one.attribute, one.grouping) == ("group", "latent", "two groups", "by layer")
    assert one.layers[0].tensors == ("0.weight", "0.bias")
    assert one.by_layer["0"].evidence is Evidence.ESTIMATE
    assert measured(record, "mean_sensitivity (inf)").about == "original"
    assert {name for name, _ in record.scores} >= {one.item}


def test_the_numbers_are_those_of_the_measures_called_by_hand(record: Record) -> None:
    loaded = plan()
    chosen = audit_of(loaded)
    seed = seed_of(loaded)
    rows = chosen.rows
    order = torch.randperm(rows.size, generator=derive_generator(seed, "rows"))
    domain = gl.Domain.guess(rows.inputs)
    release = gl.Release(gl.FedSGD())
    few = gl.Batch(rows.inputs[order[:6]], rows.targets[order[:6]], domain)
    exposure = gl.Exposure(loaded.site.objective, few, release)
    for norm in ("frobenius", "inf"):
        by_hand = gl.risk.mean_sensitivity(exposure, gl.Sensitivity(norm=norm, by="layer"))
        for layer, score in scores(record, f"mean_sensitivity ({norm})").items():
            assert score.value == pytest.approx(by_hand[layer].value, rel=1e-9)
            assert score.interval == pytest.approx(by_hand[layer].interval, rel=1e-9)
    many = gl.Batch(rows.inputs[order[:300]], rows.targets[order[:300]], domain)
    matrices = layer_gradients(
        loaded.site.objective, many, release=release, generator=torch.Generator().manual_seed(0)
    ).matrices
    assert rows.sensitive is not None
    told = rows.sensitive[order[:300]]
    latent = chosen.labels["latent_information"]
    assert isinstance(latent, gl.risk.LatentInformation)
    for layer, score in latent(matrices, told).scores.items():
        assert scores(record, "latent_information")[layer].value == pytest.approx(score.value, rel=1e-9)
    subspace = gl.risk.SubspaceDistance(dimension=2, permutations=19)
    generator = derive_generator(seed, "measure", "subspace_distance")
    for layer, score in subspace(matrices, told, generator=generator).items():
        assert scores(record, "subspace_distance")[layer].value == pytest.approx(score.value, rel=1e-9)


def test_a_closed_form_measure_of_a_layer_is_that_of_the_layer_alone(record: Record) -> None:
    loaded = plan()
    chosen = audit_of(loaded)
    rows, seed = chosen.rows, seed_of(loaded)
    order = torch.randperm(rows.size, generator=derive_generator(seed, "rows"))[:6]
    measure = gl.LinearizedPosteriorError(noise_std=0.1, prior_std=0.3)
    head = gl.risk.VisibleLayers.of(loaded.site.objective, "2")
    values = []
    for place in order:
        batch = gl.Batch(rows.inputs[place][None], rows.targets[place][None], gl.Domain.guess(rows.inputs))
        exposure = head.exposure(gl.Exposure(loaded.site.objective, batch, gl.Release(gl.FedSGD())))
        values.append(number(measure(exposure)))
    score = scores(record, "linearized_posterior_error")["2"]
    assert score.value == pytest.approx(sum(values) / 6, rel=1e-6)
    assert score.n == 6
    assert score.evidence is Evidence.ESTIMATE
    # The same layer as a set of visible tensors.
    seen = scores(record, "linearized_posterior_error", visible=True)["last layer"]
    assert replace(seen, about=score.about) == score


def test_shuffled_attributes_are_a_control(record: Record) -> None:
    controls = {one.item: one for one in layers_of(record) if one.control is not None}
    assert {item: one.control and one.control.passed for item, one in controls.items()} == {
        f"control/negative/{scenario}/group/{measure}": True
        for scenario in ("plain", "noise")
        for measure in ("latent_information", "subspace_distance")
    }
    shuffled = controls["control/negative/plain/group/latent_information"]
    assert list(shuffled.by_layer) == ["0", "2"]
    for score in shuffled.by_layer.values():
        assert score.interval is not None
        assert score.interval[0] <= 0.0
        assert number(score) < 0.05


def test_noise_on_one_layer_hides_it_and_not_the_others(record: Record) -> None:
    noisy = scores(record, "latent_information", "noise")
    assert number(noisy["0"]) < 0.05
    assert noisy["2"].value == pytest.approx(scores(record, "latent_information")["2"].value)
    verdicts = {verdict.item: verdict for verdict in record.verdicts}
    assert verdicts["plain/group"].reason == "attribute_told_by_layer"
    assert "two groups is told from the gradients of layer" in verdicts["plain/group"].explanation
    assert verdicts["run"].verdict == VerdictKind.LEAKS


def test_advice_is_about_every_release_and_holds_the_budget(record: Record) -> None:
    advice = {one.item: one.advice for one in layers_of(record) if one.advice is not None}
    assert list(advice) == ["plain/group/advice", "noise/group/advice"]
    assert all(one.budget == 0.1 and len(one.layers) == 2 for one in advice.values())
    assert sum(layer.share for layer in advice["plain/group/advice"].layers if layer.chosen) <= 0.1
    loaded = plan()
    again = audit_of(loaded).conclude(loaded.site, layers_of(record))
    assert {one.item: one.advice for one in again} == advice


def test_what_does_not_see_the_noise_of_a_release_has_no_say_in_its_advice(record: Record) -> None:
    advice = {one.scenario: one.advice for one in layers_of(record) if one.advice is not None}
    plain, noisy = advice["plain"], advice["noise"]
    assert plain is not None
    assert noisy is not None
    unseeing = {one.measure for one in layers_of(record) if one.assumed_noise}
    assert unseeing == {"mean_sensitivity (frobenius)", "mean_sensitivity (inf)", "linearized_posterior_error"}
    assert unseeing & set(plain.profiles)
    assert not unseeing & {*noisy.profiles, *noisy.silent}
    assert "without a say, since they do not see the noise of this release: mean_sensitivity" in noisy.note


def test_a_killed_run_goes_on_where_it_was(folder: Path, record: Record, tmp_path: Path) -> None:
    whole = (folder / "record.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name in (".private-data",):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    torn = "".join(whole[:12]) + whole[12][:40]
    (tmp_path / "record.jsonl").write_text(torn, encoding="utf-8")
    done = {json.loads(line)["group"] for line in whole[1:12]}
    played: list[str] = []
    again = run_plan(plan(), tmp_path, jobs=1, progress=lambda *told: played.append(told[2]))
    assert again.canonical() == record.canonical()
    assert played[0] == "resumed"
    assert len(played) - 1 < len(record.run["groups"]) - 2
    assert done < set(record.run["groups"])


def test_a_measure_that_fails_is_done_anew_and_the_advice_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = {"measures": [{"use": "Sensitivity"}, LATENT], "visible": ["last layer"], "scenarios": ["plain"]}
    original = Measured.part

    def failing(self: Measured, site: Site, reading: Reading, names: Sequence[str]) -> LayerProfile:
        if self.blank.measure == "latent_information" and reading is Reading.SHUFFLED:
            raise RuntimeError("disk on fire")
        return original(self, site, reading, names)

    monkeypatch.setattr(Measured, "part", failing)
    first = run_plan(plan(section), tmp_path, jobs=1)
    (lost,) = [one for one in layers_of(first) if one.status is Status.FAILED]
    assert (lost.audit, lost.measure, lost.grouping) == ("group", "latent_information", "by layer")
    assert first.verdicts[-1].reason == "item_failed"
    assert "disk on fire" not in json.dumps(lost.to_dict())
    monkeypatch.setattr(Measured, "part", original)
    second = run_plan(plan(section), tmp_path, jobs=1)
    assert not [one for one in layers_of(second) if one.status is Status.FAILED]
    (advice,) = [one.advice for one in layers_of(second) if one.advice is not None]
    assert advice.profiles == ("mean_sensitivity", "latent_information")


def test_layers_that_are_measured_apart_have_the_scores_of_layers_together() -> None:
    loaded = plan({"count": 120})
    work = audit_of(loaded).work(loaded.site, "noise", seed=seed_of(loaded))
    # A pass for all layers is a piece where it costs as much as one for a single layer.
    assert [one.apart for one in work] == [False, False, False, True, True]
    for one in work[3:]:
        cut, whole = (replace(one, apart=apart).take(loaded.site) for apart in (True, False))
        for found, wanted in ((cut.profile, whole.profile), (cut.shuffled, whole.shuffled), (cut.seen, whole.seen)):
            assert found == wanted
            assert found is not None
            assert wanted is not None
            assert found.rivals() == wanted.rivals()


def test_many_gradients_are_taken_once_for_all_layers() -> None:
    loaded = plan({"measures": [LATENT, SUBSPACE]})
    wide = replace(loaded.site, objective=Objective.from_module(mlp(features=6, hidden=(4000,), classes=2)))
    assert [one.apart for one in audit_of(loaded).work(wide, "plain", seed=0)] == [False, False]


def test_python_gives_the_same_record(record: Record) -> None:
    loaded = plan()
    chosen = audit_of(loaded)
    seed = seed_of(loaded)
    found = gl.audits.layers.profile_layers(loaded.site.objective, chosen.rows, audit=chosen, seed=seed)
    findings = gl.audits.layers.findings_of_layers({"plain": found}, audit="group")
    theirs = [one for one in layers_of(record) if one.scenario == "plain"]
    assert sorted(one.item for one in findings) == sorted(one.item for one in theirs)
    by_item = {one.item: one.but(seconds=0.0) for one in theirs}
    assert all(one == by_item[one.item] for one in findings)
    mine = gl.auditing.record_of(findings, citations=found.sources)
    assert mine.verdicts[0] == next(verdict for verdict in record.verdicts if verdict.item == "plain/group")
    assert mine.complete
    assert "Mo et al" in str(mine.run["citations"]) or "Mo, Borovykh" in str(mine.run["citations"])
    assert found.controls == {"latent_information": True, "subspace_distance": True}
    assert found.visible["latent_information"].scores.keys() == {"last layer"}
    with pytest.raises(InputError, match="at least one result"):
        gl.audits.layers.findings_of_layers({})


def test_rows_that_carry_nothing_are_measured_by_what_needs_nothing() -> None:
    batch = gl.Batch(torch.rand(5, 6, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 0, 1, 1]))
    found = gl.audits.layers.profile_layers(plan().site.objective, batch)
    assert list(found.profiles) == ["mean_sensitivity"]
    record = gl.auditing.record_of(gl.audits.layers.findings_of_layers(found))
    assert [verdict.reason for verdict in record.verdicts] == ["layers_compared"] * 3
    (score,) = {score.n for score in found.profiles["mean_sensitivity"].scores.values()}
    assert score == 5


def test_batches_of_one_value_share_no_row() -> None:
    drawn = audit_of(plan({"batch_size": 4, "releases": 3})).source.drawn(0)
    assert drawn.batches is not None
    assert len(drawn.batches.unique()) == drawn.batches.numel()
    told = audit_of(plan()).source.drawn(0).target
    assert all(
        told[batch].tolist() == [int(value)] * 4 for batch, value in zip(drawn.batches, drawn.target, strict=True)
    )
    assert [batch.size for batch in drawn.releases] == [4, 4, 4]


def _of_users(seed: int, users: int = 24, each: int = 9) -> Population:
    """Rows that show their user, who has one value or the other by chance: nothing of a user that is not known."""
    source = torch.Generator().manual_seed(seed)
    owner = torch.arange(users).repeat_interleave(each)
    value = (torch.randperm(users, generator=source) % 2)[owner]
    inputs = 3.0 * torch.randn(users, 6, generator=source)[owner]
    inputs += 0.3 * torch.randn(users * each, 6, generator=source)
    return Population(
        name="users",
        inputs=inputs,
        targets=(inputs[:, 0] > 0).long(),
        sensitive=value,
        values=("a", "b"),
        users=owner,
    )


def test_batches_of_a_user_are_not_told_by_others_of_that_user() -> None:
    measures = [gl.risk.LatentInformation(classifier=gl.attacks.LogisticRegression(), folds=2, resamples=200)]
    for seed in range(3):
        rows = _of_users(seed)
        model = mlp(
            features=6, hidden=(8,), classes=2, activation="tanh", generator=torch.Generator().manual_seed(seed)
        )
        audit = gl.audits.layers.LayersAudit(rows=rows, measures=measures, batch_size=4)
        found = gl.audits.layers.profile_layers(model, rows, audit=audit, seed=seed)
        assert gl.auditing.record_of(gl.audits.layers.findings_of_layers(found)).verdicts[-1].reason == "nothing_told"
        drawn = audit.source.drawn(seed)
        assert drawn.batches is not None
        assert drawn.clusters is not None
        order = torch.randperm(rows.size, generator=derive_generator(seed, "rows"))
        assert rows.users is not None
        owners = rows.users[order][drawn.batches]
        for cluster in drawn.clusters.unique():
            inside = owners[drawn.clusters == cluster].unique()
            assert not torch.isin(inside, owners[drawn.clusters != cluster]).any()
        assert len(drawn.clusters.unique()) == 24


def test_two_values_have_any_two_numbers() -> None:
    random = torch.Generator().manual_seed(0)
    inputs, values = torch.randn(60, 6, generator=random), torch.arange(60) % 2
    scores = []
    several = [gl.Batch(inputs, values, sensitive=numbers) for numbers in (values, 7 * values - 5)]
    for rows in several:
        found = gl.audits.layers.profile_layers(
            plan().site.objective, rows, [gl.risk.SubspaceDistance(dimension=2, permutations=19)]
        )
        scores.append([score.value for score in found.profiles["subspace_distance"].scores.values()])
    assert None not in scores[0]
    assert scores[0] == scores[1]
    with pytest.raises(InputError, match="the rows with value -5 among 60"):
        gl.audits.layers.LayersAudit(
            rows=several[1], measures=[gl.risk.SubspaceDistance()], batch_size=40
        ).source.drawn(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"visible": {"head": "2"}}, r"visible\['head'\]: expected a VisibleLayers, got '2'"),
        ({"visible": None}, "visible: expected VisibleLayers objects by name, got None"),
    ],
)
def test_what_is_no_set_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    rows = gl.Batch(torch.zeros(4, 6), torch.arange(4) % 2)
    with pytest.raises(InputError, match=message):
        gl.audits.layers.LayersAudit(rows=rows, measures=[gl.Sensitivity()], **changes)


def test_what_is_no_threat_model_is_refused_by_name() -> None:
    rows = gl.Batch(torch.zeros(4, 6), torch.arange(4) % 2)
    with pytest.raises(InputError, match="threat: expected a threat model"):
        gl.audits.layers.profile_layers(plan().site.objective, rows, threat="curious")  # type: ignore[arg-type]


def test_batches_are_measured_as_batches(tmp_path: Path) -> None:
    section = {"batch_size": 3, "releases": 4, "measures": [{"use": "Sensitivity"}, POSTERIOR], "scenarios": ["plain"]}
    loaded = plan(section)
    chosen = audit_of(loaded)
    record = run_plan(loaded, tmp_path, jobs=1)
    seed = seed_of(loaded)
    first = chosen.source.drawn(seed).releases
    values = [
        gl.Sensitivity(by="layer")(gl.Exposure(loaded.site.objective, batch, gl.Release(gl.FedSGD()))).details[
            "values"
        ]["2"]
        for batch in first
    ]
    assert scores(record, "mean_sensitivity")["2"].value == pytest.approx(sum(values) / 4, rel=1e-9)
    assert scores(record, "linearized_posterior_error")["0"].n == 4


def test_the_plan_has_columns_labels_groups_and_sets(tmp_path: Path) -> None:
    section = {
        "data": TABLE, "target": "paid", "attribute": "group", "value": "b", "keep_attribute": False, "count": 60, "releases": 2,
        "by": {"all": ["0", "2"]}, "visible": {"head": ["2"], "rest": {"hide": ["2.bias"]}}, "measures": [SUBSPACE],
    }  # fmt: skip
    rows = audit_of(build_plan(content() | {"layers": {"group": section}}, folder=ROOT))
    assert list(rows.visible) == ["head", "rest"]
    assert rows.visible["rest"].names == ("0.weight", "0.bias", "2.weight")
    assert rows.groups(plan().site.objective) == {"all": ("0.weight", "0.bias", "2.weight", "2.bias")}
    pairs = audit_of(plan({"by": {"consecutive": 2}, "attribute": "label"}))
    assert list(pairs.groups(plan().site.objective)) == ["0 + 2"]
    assert pairs.source.attribute == "the label"
    own = content({"measures": [{"use": "Sensitivity"}], "count": 4, "releases": 2})
    del own["layers"]["group"]["data"]
    own["data"] = {"use": "adult_census", "count": 4}
    own["model"]["features"] = 65
    audit = audit_of(build_plan(own, folder=ROOT))
    assert audit.rows.size == 4
    assert audit.rows.sensitive is not None


def test_a_plan_names_a_measure_of_somebody_else() -> None:
    own = {"use": "tests.audits.layers.own_measure:Entries", "few": 2}
    measures = audit_of(plan({"measures": [own, {"use": "Sensitivity"}]})).measures
    assert measures[0] == Entries(few=2)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"measurez": []}, "unknown key 'measurez'; did you mean 'measures'"),
        ({"measures": []}, "expected measures = "),
        ({"measures": [{"use": "Sensitivit"}]}, "did you mean 'Sensitivity'"),
        ({"measures": [{"use": "GaussNewton"}]}, "GaussNewton is an attack"),
        ({"measures": [{"use": "Sensitivity", "by": "layer"}]}, "'by'; it is taken from by of the section"),
        ({"measures": [LATENT | {"folds": 1}]}, "measures[0].folds"),
        ({"attribute": "gender"}, "a column needs data that are a table"),
        ({"attribute": "inputs"}, "compares values of an attribute or label"),
        ({"visible": None, "data": {"use": "tests.auditing.small_model:pair_data"}, "releases": 1}, "the rows carry none"),
        ({"visible": None, "data": {"use": "scikit_digits", "count": 50}, "attribute": "label"}, "there are 10 values;"),
        ({"data": {"use": "mlp", "features": 2, "classes": 2}}, "mlp is a model"),
        ({"data": TABLE}, "expected target too"),
        ({"data": TABLE, "target": "paid"}, "expected one of the columns"),
        ({"data": TABLE, "target": "paid", "attribute": "groups"}, "expected one of the columns"),
        ({"target": "paid"}, "'target'; it cuts a table"),
        ({"value": "c"}, "value: expected one of a, b, got 'c'"),
        ({"value": 1.5}, "expected the name or number of a value"),
        ({"count": 0}, "count"),
        ({"batch_size": 50, "releases": 40}, "expected at least 2000 rows"),
        ({"budget": 1.5}, "budget"),
        ({"by": "block"}, "expected 'tensor' or 'layer'"),
        ({"by": {"head": ["9"]}}, "no shared tensor or layer; is it"),
        ({"by": {"consecutive": 0}}, "Consecutive.count"),
        ({"visible": ["all but the embedding"]}, "needs a model with an embedding, and this one has none"),
        ({"visible": ["last layr"]}, "did you mean 'last layer'"),
        ({"visible": {"mine": {"show": ["2"]}}}, "expected a list of layers"),
        ({"visible": {"mine": ["7"]}}, "no shared tensor or layer; is it"),
        ({"scenarios": ["plane"]}, "did you mean 'plain'"),
    ],
    ids=lambda value: next(iter(value), "none") if isinstance(value, dict) else value[:24],
)  # fmt: skip
def test_bad_sections_are_refused_in_one_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(section)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "layers.group" in str(caught.value)


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        ({"measures": [{"use": "OriginalInformation", "attack": {"use": "GaussNewton"}}]}, {}, "SSIM is not defined"),
        (
            {},
            {"model": {"use": "mlp", "features": 5, "hidden": [8], "classes": 2}},
            "does not accept an example of shape",
        ),
        ({"batch_size": 40, "count": 60, "releases": 1}, {}, "the rows with value"),
    ],
    ids=["no image", "another model", "too few rows"],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    section: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=message):
        run_plan(plan(section, **changes), tmp_path / "out", jobs=1)
    assert not (tmp_path / "out").exists()


def test_what_one_release_cannot_take_is_an_outcome_there(tmp_path: Path) -> None:
    noise = {"use": "GaussianNoise", "std": 0.1}
    section = {"measures": [{"use": "InversionInfluence"}], "visible": ["last bias"], "releases": 3}
    loaded = plan(section, scenarios=[{"name": "plain"}, {"name": "noise", "defenses": [noise]}])
    record = run_plan(loaded, tmp_path, jobs=1)
    plain = measured(record, "inversion_influence")
    assert (plain.by_layer["0"].value, plain.outcome) == (None, Outcome.UNSUPPORTED)
    assert "predicts what noise of the release does" in plain.by_layer["0"].note
    assert number(scores(record, "inversion_influence", "noise")["0"]) > 0.0
    # Two directions of six are seen by the last bias: an error over these compares with no other.
    bias = scores(record, "inversion_influence", "noise", visible=True)["last bias"]
    assert (bias.value, bias.outcome) == (None, Outcome.NOT_IDENTIFIABLE)
    assert bias.details["over_range"] > 0.0


def test_profiles_come_back_from_their_findings(record: Record) -> None:
    one = measured(record, "latent_information")
    profile = profile_of(one)
    assert (profile.measure, profile.groups["0"]) == ("latent_information", ("0.weight", "0.bias"))
    assert replace(profile.scores["0"], about={"layer": "0"}) == one.by_layer["0"]


def test_what_lies_beyond_chance() -> None:
    def of(value: float | None, **rest: Any) -> Score:
        return Score(name="x", value=value, unit="nats", leakier=Leakier.HIGHER, evidence=Evidence.ESTIMATE, **rest)

    # At 99.9 % an interval of ± 1 (1.96 standard errors) reaches 1.58 on one side.
    assert reaches(of(1.6, interval=(0.6, 2.6)), 1) is True
    assert reaches(of(1.5, interval=(0.5, 2.5)), 1) is False
    assert reaches(of(1.6, interval=(0.6, 2.6)), 5) is False
    assert reaches(of(0.0, interval=(-0.1, 0.0), details={"unclipped": -0.05}), 1) is False
    assert reaches(of(1.0, details={"p_value": 0.05, "effect_size": 4.0}), 1) is True
    assert reaches(of(1.0, details={"p_value": 0.05, "effect_size": 1.0}), 1) is False
    assert reaches(of(1.0), 1) is None
    assert reaches(of(None, outcome=Outcome.NO_SIGNAL), 1) is None


def test_the_example_is_a_plan(tmp_path: Path) -> None:
    loaded = load_plan(ROOT / "examples" / "adult_layers.toml")
    assert list(audit_of(loaded, "gender").labels) == [
        "mean_sensitivity", "linearized_posterior_error", "latent_information", "subspace_distance",
    ]  # fmt: skip
    assert estimate(loaded) > 1000
    assert loaded.resolved()["audits"]["layers"]["gender"]["told"] == "sensitive"


def test_an_inversion_is_the_adversary_of_the_plan(tmp_path: Path) -> None:
    inversion = {
        "use": "OriginalInformation",
        "attack": {"use": "GaussNewton", "max_steps": 5, "warm_iterations": 20},
        "error": {"use": "NormalizedError", "spread": 0.2},
    }
    section = {"measures": [inversion], "visible": ["last bias"], "releases": 2, "scenarios": ["plain"]}
    loaded = plan(section, threat={"use": "HonestButCurious", "targets": True})
    record = run_plan(loaded, tmp_path, jobs=1)
    chosen = audit_of(loaded)
    measure = chosen.labels["original_information"]
    assert isinstance(measure, gl.risk.OriginalInformation)
    batches = chosen.source.drawn(seed_of(loaded)).releases
    exposures = [gl.Exposure(loaded.site.objective, batch, gl.Release(gl.FedSGD())) for batch in batches]
    told = gl.risk.OriginalInformation(
        attack=measure.attack,
        by="layer",
        threat_model=gl.HonestButCurious(targets=True),
        error=measure.error,
        seed=measure.seed,
    )(exposures)
    for layer, score in scores(record, "original_information").items():
        assert score.value == pytest.approx(told.scores[layer].value)
        assert score.evidence is Evidence.ATTACK
    bias = scores(record, "original_information", visible=True)["last bias"]
    assert number(bias) < number(scores(record, "original_information")["0"])
