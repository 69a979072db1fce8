"""LAMP: continuous steps in turn with moves, and the language models that its adversary brings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from gradleak.attacks import LAMP, Language, NGram
from gradleak.attacks.attack import Monitor
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.attacks.inversion.lamp import _Rounds
from gradleak.attacks.inversion.problem import LabelPolicy, Problem
from gradleak.auditing import load_plan, run_plan
from gradleak.core import Domain, Vocabulary
from gradleak.reporting import write_markdown
from gradleak.results import InputError, Outcome
from tests.attacks.text.test_matching_attacks import attacked, released, short
from tests.tokens import sentences, tiny

SMALL = LAMP(starts=10, rounds=2, iterations=10, moves=10)


@dataclass(frozen=True, kw_only=True)
class Alphabet(Language):
    """A language of ascending ids."""

    @property
    def size(self) -> int:
        return 60

    def log_probability(self, ids: Sequence[int]) -> float:
        return -100.0 * sum(first > second for first, second in itertools.combinations(ids, 2))


def test_lamp_finds_words_counts_its_cost_and_says_that_no_language_was_brought() -> None:
    model, batch = short(0.02)
    update, knowledge = released(model, batch)
    attack = LAMP(starts=10, rounds=2, iterations=40, moves=10)
    steps: list[tuple[int, int]] = []
    found = attack(
        update,
        knowledge,
        generator=torch.Generator().manual_seed(0),
        progress=lambda done, planned, loss: steps.append((done, planned)),
    )
    assert int((found.tokens == batch.inputs).sum()) >= 2
    assert "no language model was brought" in found.note
    assert found.plain_gradients <= attack.estimate(knowledge) == 10 + 2 * (3 * 41 + 10)
    assert steps == sorted(steps)
    assert steps[-1][0] <= steps[-1][1] == 2 * 41


def _rounds(language: Language | None, moves: int = 200) -> _Rounds:
    model, batch = short(0.2)
    update, knowledge = released(model, batch)
    problem = Problem.pose(update, knowledge, pixels=Embeddings(), policy=LabelPolicy.RECOVER)
    config = replace(SMALL, language=language, moves=moves)
    return _Rounds(config, problem, torch.Generator().manual_seed(0), Monitor())


def test_moves_put_words_where_the_gradient_has_them() -> None:
    rounds = _rounds(None)
    objective = rounds.problem.objective
    mixed = objective.embed(torch.tensor([[9, 41, 7, 23]]))
    start = rounds.problem.variables.encode(rounds.problem.space, mixed, torch.tensor([1]))
    end = rounds._moved(start)
    inputs = rounds.problem.variables.decode(rounds.problem.space, end, torch.tensor([1]))[0]
    assert rounds.sentences.words(inputs).tolist() == [7, 41, 23, 9]
    assert 0 < rounds.kept < rounds.tried <= 200


def test_moves_put_words_where_the_language_has_them_if_it_weighs_more() -> None:
    rounds = _rounds(Alphabet())
    mixed = rounds.problem.objective.embed(torch.tensor([[9, 41, 7, 23]]))
    end = rounds._moved(rounds.problem.variables.encode(rounds.problem.space, mixed, torch.tensor([1])))
    inputs = rounds.problem.variables.decode(rounds.problem.space, end, torch.tensor([1]))[0]
    assert rounds.sentences.words(inputs).tolist() == [7, 9, 23, 41]


def test_moves_are_rearrangements_of_all_kinds() -> None:
    rounds = _rounds(None)
    seen = {tuple(rounds._order(4)) for _ in range(400)}
    assert all(sorted(order) == [0, 1, 2, 3] for order in seen)
    assert {(1, 0, 2, 3), (1, 2, 3, 0), (2, 3, 0, 1), (0, 1, 3, 2)} <= seen


def test_the_language_that_was_brought_stands_in_the_claim_without_its_text() -> None:
    update, knowledge = released(tiny(), sentences(7))
    language = NGram(sentences=[[3, 4, 5], [5, 6]], vocabulary=40)
    found = attacked(replace(SMALL, language=language), update, knowledge)
    assert found.details["information"][-1] == "language model: NGram(vocabulary=40, order=2)"
    assert found.outcome is Outcome.BUDGET_SPENT
    assert "language model" not in found.note


def test_public_sentences_stand_in_for_a_language() -> None:
    update, knowledge = released(tiny(), sentences(7))
    found = attacked(SMALL, update, replace(knowledge, public=sentences(5, 6, seed=1)))
    assert found.details["information"][-1] == "language model: NGram(vocabulary=40, order=2)"


def test_a_language_of_too_few_words_is_refused_before_anything_is_computed() -> None:
    model, batch = short(0.1)
    _, knowledge = released(model, batch)
    small = LAMP(language=NGram(sentences=[[0, 1]], vocabulary=2))
    assert "expected a language model of the 60 ids" in str(small.refusal(knowledge))


def test_ngrams_are_probabilities_and_shorter_runs_stand_in() -> None:
    language = NGram(sentences=[[0, 1, 2], [0, 1, 3], [2, 0]], vocabulary=5, order=3)
    for before in ([], [0], [0, 1], [4, 4], [3]):
        total = sum(math.exp(language.log_probability([*before, word])) for word in range(5))
        assert total == pytest.approx(math.exp(language.log_probability(before)))
    assert language.log_probability([0, 1, 2]) > language.log_probability([0, 2, 1])
    # One word of eight, and four different ones: (3 + 4/5) / (8 + 4).
    assert math.exp(language.log_probability([0])) == pytest.approx(3.8 / 12)
    for wrong in ([], [[5]], [[-1]]):
        with pytest.raises(InputError, match=r"NGram\.sentences: expected ids from 0 to 4"):
            NGram(sentences=wrong, vocabulary=5)


def test_a_public_text_makes_a_language(tmp_path: Path) -> None:
    text = tmp_path / "public.txt"
    text.write_text("the cat sat\n\nthe cat ran\n", encoding="utf-8")
    vocabulary = Vocabulary.of_text(text, words=6)
    language = NGram.of_text(text, vocabulary)
    assert language.size == vocabulary.size
    assert language.log_probability(vocabulary.indices("the cat")) > language.log_probability(
        vocabulary.indices("cat the")
    )


PLAN = """
seed = 3
[model]
use = "transformer"
words = 24
length = 10
width = 16
blocks = 1
[data]
use = "text_file"
path = "private.txt"
public_text = "public.txt"
words = 20
count = 1
length = 10
[controls]
negative = false
positive = false
[attacks.lamp]
use = "LAMP"
starts = 2
rounds = 1
iterations = 1
language = { use = "tests.attacks.text.test_lamp:public_language" }
[attacks.tag]
use = "TAG"
iterations = 1
[attacks.newton]
use = "GaussNewton"
max_plain_gradients = 400
[[scenarios]]
name = "undefended"
attacks = { lamp = "all", tag = "all", newton = "all" }
"""


def public_language() -> NGram:
    return NGram(sentences=[[4, 5, 6]], vocabulary=24)


def test_a_plan_names_attacks_that_match_gradients_and_the_language_of_the_adversary(tmp_path: Path) -> None:
    (tmp_path / "public.txt").write_text("the red fox saw the old dog near a river .\n", encoding="utf-8")
    (tmp_path / "private.txt").write_text("the old fox saw a river .\n", encoding="utf-8")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    record = run_plan(load_plan(tmp_path / "plan.toml"), tmp_path / "run", jobs=1)
    found = {finding.item: finding for finding in record.findings}
    for name in ("lamp", "tag", "newton"):
        claim = found[f"undefended/example 0/{name}"]
        assert claim.outcome is Outcome.BUDGET_SPENT
        assert 0 <= claim.value("token_error") <= 1
    page = write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Balunović" in page
    assert "language model: NGram(vocabulary=24, order=2)" in page


def test_words_of_other_sentences_are_left_where_they_are() -> None:
    update, knowledge = released(tiny(), sentences(5, 8), lengths=True)
    found = attacked(SMALL, update, knowledge)
    assert found.tokens[0, [0, 4, 5, 6, 7]].tolist() == [1, 2, -1, -1, -1]
    assert found.tokens[1, [0, 7]].tolist() == [1, 2]
    assert isinstance(knowledge.domain, Domain)
