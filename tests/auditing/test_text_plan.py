"""Audits of text from a plan file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradleak.auditing import load_plan, run_plan
from gradleak.auditing.run import tasks
from gradleak.reporting import write_html, write_json, write_markdown
from gradleak.results import PlanError, Record, VerdictKind

EXAMPLE = Path(__file__).parents[2] / "examples" / "sentences.toml"

CAUSAL = """
seed = 3
pictures = {pictures}
[model]
use = "transformer"
words = 24
length = 10
width = 24
blocks = 2
causal = true
classes = 0
std = 0.2
[data]
use = "text_file"
path = "private.txt"
public_text = "public.txt"
words = 20
count = 2
batch_size = 2
length = 10
targets = "causal_lm"
[objective]
loss = "causal_lm"
[thresholds]
token_error = 0.4
[controls]
negative = false
[measures.tokens]
use = "TokenError"
most_candidates = 6
most_places = 2
threshold = 0.4
[attacks.spans]
use = "SpanSearch"
[attacks.rows]
use = "TokenRows"
[[scenarios]]
name = "undefended"
attacks = {{ spans = "all", rows = "all" }}
"""
PUBLIC = "the red fox saw the old dog near a river . a dog and the fox ran home , and the river was cold .\n"
PRIVATE = "the old fox ran near the river .\na cold dog saw the red fox .\n"


def write(folder: Path, plan: str) -> Path:
    (folder / "public.txt").write_text(PUBLIC, encoding="utf-8")
    (folder / "private.txt").write_text(PRIVATE, encoding="utf-8")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    return folder / "plan.toml"


def test_closed_forms_of_sentences_are_counted_at_their_embeddings(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, CAUSAL.format(pictures="false")))
    [risk] = [task for task in tasks(plan) if task.name.startswith("risk/")]
    places, unknowns = 2, 2 * 10 * 24
    assert risk.cost == pytest.approx(14 + 0.3 * unknowns + 5 * places)
    # A and its square have as many rows as the update has entries.
    assert 0.1 + 2 * unknowns**2 * plan.site.objective.size / 3e10 < risk.seconds < 1


def test_sentences_behind_a_decoder_come_out_of_a_plan(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, CAUSAL.format(pictures="true")))
    record: Record = run_plan(plan, tmp_path / "run", jobs=1)
    verdict = record.verdicts[0]
    assert verdict.verdict is VerdictKind.LEAKS
    found = next(one for one in record.findings if one.item == "undefended/example 0/spans")
    # The loss reads no last token of a sentence, so that one of eight words is open.
    assert found.value("token_error") == pytest.approx(1 / 8)
    risk = next(one for one in record.findings if one.item == "undefended/example 0/risk")
    noise = risk.score("noise_std_for_token_error")
    assert noise.value is not None
    assert noise.value > 0
    assert (noise.details["threshold"], len(noise.details["per_place"])) == (0.4, 2)
    assert noise.details["under_prior"].startswith("uniform over ")
    assert record.run["plan"]["thresholds"]["token_error"] == 0.4
    assert found.value("feature_mse") > 0
    page = write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
    # The end of the sentence is claimed nowhere.
    assert "**the** **river** □" in page
    assert "Without the update guessers get" in page
    assert "guessers told the bag of words" in page
    html = write_html(record, tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<strong class="right">river</strong>' in html
    assert '<span class="open" title="nothing is claimed here">□</span>' in html
    told = json.dumps(json.loads(write_json(record, tmp_path / "report.json").read_text(encoding="utf-8")))
    assert '{"token": "river", "state": "right"}' in told
    assert "guessers told the bag of words" in told
    texts = [json.loads(file.read_text(encoding="utf-8")) for file in (tmp_path / "run" / "pictures").glob("*.json")]
    assert any("river" in json.dumps(text) for text in texts)


PRIVATE_TRAINING = """
[measures.chance]
use = "ReconstructionProbability"
candidates = 12
within = 0.4
[[scenarios]]
name = "DP-SGD"
adversaries = ["adaptive"]
defenses = [{ use = "DPSGD", clip_norm = 1.0, noise_std = 20.0, noise = "sum" }]
attacks = { spans = "all" }
"""


def test_sentences_under_differential_privacy_are_bounded_with_their_prior(tmp_path: Path) -> None:
    text = CAUSAL.format(pictures="false").partition("[measures.tokens]")[0]
    spans = '[attacks.spans]\nuse = "SpanSearch"\n[thresholds]\ntoken_error = 0.4\nreconstruction_probability = 0.5\n'
    text = text.replace("[thresholds]\ntoken_error = 0.4\n", "") + spans + PRIVATE_TRAINING
    record: Record = run_plan(load_plan(write(tmp_path, text)), tmp_path / "run", jobs=1)
    verdict = next(one for one in record.verdicts if one.scenario == "DP-SGD")
    assert (verdict.verdict, verdict.reason) == (VerdictKind.BOUNDED, "dp_bound")
    # A prior needs no derivative at embeddings, which took five times as long as all else.
    risk = [one.item for one in record.findings if one.audit == "risk"]
    assert risk
    assert all(item.endswith("/setting") for item in risk)
    # One guess at two sentences, of 12 candidates, right for at most 1 / (1 - 0.4) of them: once each.
    assert verdict.details["kappa"] == pytest.approx(2 / 12)
    page = write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
    html = write_html(record, tmp_path / "report.html").read_text(encoding="utf-8")
    for told in (page, html):
        assert "to a token error of 0.4 with a probability above" in told
        assert (
            "one of 12 sentences of one length, each as likely, of which no two have the same word at a place" in told
        )


def test_private_words_stay_off_the_disk_where_the_plan_does_not_ask(tmp_path: Path) -> None:
    plan = load_plan(write(tmp_path, CAUSAL.format(pictures="false")))
    run_plan(plan, tmp_path / "run", jobs=1)
    held = [file.read_text(encoding="utf-8") for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert len(held) > 1
    rows = [[one for one in row if one >= 0] for row in plan.site.batches[0].inputs.tolist()]
    assert not any(json.dumps(row[:4])[1:-1] in content for content in held for row in rows)
    assert not (tmp_path / "run" / "pictures").exists()


def test_files_lie_beside_the_plan(tmp_path: Path) -> None:
    path = write(tmp_path, CAUSAL.format(pictures="false"))
    assert load_plan(path).site.batches[0].size == 2
    (tmp_path / "private.txt").unlink()
    with pytest.raises(PlanError, match=r"private\.txt: expected a text file, got no such file"):
        load_plan(path)


def test_the_example_is_of_real_sentences() -> None:
    site = load_plan(EXAMPLE).site
    assert [batch.inputs.shape[0] for batch in site.batches] == [2, 2, 2]
    vocabulary = site.batches[0].domain.vocabulary
    said = vocabulary.decode(one for one in site.batches[0].inputs[0].tolist() if one >= 0)
    assert said.endswith(".")
    assert site.threat.public.inputs.shape == (100, 24)


@pytest.mark.slow
def test_the_example_leaks_where_nothing_defends_it(tmp_path: Path) -> None:
    record = run_plan(load_plan(EXAMPLE), tmp_path, jobs=1)
    verdicts = {verdict.scenario: verdict for verdict in record.verdicts if verdict.scenario}
    assert verdicts["undefended"].verdict is VerdictKind.LEAKS
    assert (verdicts["DP-SGD"].verdict, verdicts["DP-SGD"].reason) == (VerdictKind.BOUNDED, "all_bounded")
