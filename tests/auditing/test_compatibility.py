"""The matrix attack by defense: what is said to run runs, and what is refused is refused before anything is computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from typer.testing import CliRunner

from gradleak.attacks import Attack, GaussNewton, InvertingGradients, SpanSearch, TokenRows
from gradleak.attacks.inversion.embeddings import Embeddings
from gradleak.auditing import catalog
from gradleak.auditing.compatibility import (
    MEANINGS,
    Pair,
    as_text,
    defenses,
    knowledge_for,
    pairs,
    small_setting,
)
from gradleak.audits.base import Adversary
from gradleak.cli.commands import app
from gradleak.core import Knowledge, Update
from gradleak.results import KnowledgeError, Outcome, UnsupportedError
from tests.contracts.test_attacks import EXAMPLES as ON_NUMBERS
from tests.contracts.test_token_attacks import EXAMPLES as ON_TOKENS
from tools.attack_defense_matrix import PAGE, as_markdown

EXAMPLES: dict[type[Attack], Attack] = {**ON_NUMBERS, **ON_TOKENS}
FAST = (GaussNewton, InvertingGradients, SpanSearch, TokenRows)
LABEL_ATTACKS = [entry.constructor for entry in catalog()["labels"].values()]
TINY = {"iterations": 1, "restarts": 1, "starts": 1, "max_steps": 1, "warm_iterations": 1}

pytestmark = pytest.mark.usefixtures("global_rng_unchanged")


@pytest.fixture(scope="module")
def matrix() -> Sequence[Pair]:
    return pairs()


def tiny(kind: type[Attack], *, sentence: bool) -> Attack:
    attack = EXAMPLES[kind]
    fields = {field.name for field in dataclasses.fields(attack)}
    if sentence and kind.claims_embeddings and "variables" in fields:
        attack = dataclasses.replace(attack, variables=Embeddings())
    return dataclasses.replace(attack, **{name: value for name, value in TINY.items() if name in fields})


def case(attack: Attack, pair: Pair, adversary: Adversary) -> tuple[Update, Knowledge]:
    setting = small_setting(*pair.defenses, tokens=pair.sentence)
    generator = torch.Generator().manual_seed(1)
    update = setting.release(setting.objective, setting.batch, generator)
    return update, knowledge_for(attack, setting, adversary)


def wrong(claimed: torch.Tensor, pair: Pair) -> bool:
    """True if some place is claimed with another token than the sentence has there."""
    truth = small_setting(*pair.defenses, tokens=True).batch.inputs
    return bool(((claimed >= 0) & (claimed != truth)).any())


def test_every_attack_meets_every_defense(matrix: Sequence[Pair]) -> None:
    rooms = catalog()
    assert set(defenses()) >= set(rooms["defenses"])
    kinds = {name: entry.constructor for name, entry in rooms["attacks"].items()}
    asked = {(name, kind.claims_tokens) for name, kind in kinds.items()}
    asked |= {(name, True) for name, kind in kinds.items() if kind.claims_embeddings}
    assert {(pair.attack, pair.sentence, pair.defenses) for pair in matrix} >= {
        (*one, (defense,)) for one in asked for defense in defenses()
    }
    assert {("GaussNewton", True), ("GaussNewton", False)} <= asked
    for name, make in defenses().items():
        assert type(make()).__name__ == name.split("(")[0]


def test_a_static_adversary_is_never_refused_for_a_defense_by_attacks_that_need_no_defense(
    matrix: Sequence[Pair],
) -> None:
    kinds = {kind.__name__: kind for kind in EXAMPLES}
    for pair in matrix:
        # The bottleneck is a layer of the model that draws, whoever knows of it, and one layer is read after the other.
        drawn = pair.attack == "Peel" and pair.place == "VariationalBottleneck"
        needs_them = "defenses" in kinds[pair.attack].needs or drawn
        assert (Adversary.STATIC in pair.refused) == needs_them


def _sweep(
    matrix: Sequence[Pair],
    kind: type[Attack],
    monkeypatch: pytest.MonkeyPatch,
    adversaries: Sequence[Adversary],
    *,
    sentence: bool,
) -> None:
    attack = tiny(kind, sentence=sentence)
    rows = [pair for pair in matrix if pair.attack == kind.__name__ and pair.sentence is sentence]
    assert rows
    for pair in rows:
        for adversary in adversaries:
            update, knowledge = case(attack, pair, adversary)
            generator = torch.Generator().manual_seed(2)
            if adversary in pair.runs:
                found = attack(update, knowledge, generator=generator)
                assert found.inputs is None or bool(torch.isfinite(found.inputs).all()), pair
                assert (
                    found.tokens is None or not wrong(found.tokens, pair) or found.outcome is not Outcome.CONVERGED
                ), pair
                assert found.outcome.label not in ("unsupported", "failed"), pair
                continue
            with monkeypatch.context() as patch:
                patch.setattr(kind, "_recover", None)
                patch.setattr(kind, "_recover_many", None)
                with pytest.raises((KnowledgeError, UnsupportedError)) as refusal:
                    attack(update, knowledge, generator=generator)
            assert str(refusal.value) == pair.refused[adversary]
            assert torch.equal(generator.get_state(), torch.Generator().manual_seed(2).get_state())


@pytest.mark.parametrize("kind", FAST, ids=lambda kind: kind.__name__)
def test_pairs_that_are_said_to_run_do_and_others_raise_before_anything_is_computed(
    matrix: Sequence[Pair], kind: type[Attack], monkeypatch: pytest.MonkeyPatch
) -> None:
    _sweep(matrix, kind, monkeypatch, [Adversary.ADAPTIVE], sentence=kind.claims_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_all_other_pairs(matrix: Sequence[Pair], kind: type[Attack], monkeypatch: pytest.MonkeyPatch) -> None:
    adversaries = [Adversary.STATIC] if kind in FAST else list(Adversary)
    _sweep(matrix, kind, monkeypatch, adversaries, sentence=kind.claims_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in EXAMPLES if kind.claims_embeddings], ids=lambda kind: kind.__name__)
def test_pairs_of_attacks_that_search_embeddings(
    matrix: Sequence[Pair], kind: type[Attack], monkeypatch: pytest.MonkeyPatch
) -> None:
    _sweep(matrix, kind, monkeypatch, list(Adversary), sentence=True)


@pytest.mark.parametrize("adversary", list(Adversary))
def test_label_attacks_answer_under_every_defense(matrix: Sequence[Pair], adversary: Adversary) -> None:
    for pair in [pair for pair in matrix if pair.attack == "GaussNewton" and not pair.sentence]:
        update, knowledge = case(GaussNewton(), pair, adversary)
        for kind in LABEL_ATTACKS:
            found = kind()(update, knowledge, generator=torch.Generator().manual_seed(2))
            assert found.note
            assert found.targets is None or found.targets.shape == (1,)


def test_the_page_is_what_the_attacks_say(matrix: Sequence[Pair]) -> None:
    assert PAGE.read_text(encoding="utf-8") == as_markdown(matrix), "run python -m tools.attack_defense_matrix"


def test_the_text_has_a_mark_for_every_pair_and_a_reason_for_every_refusal(matrix: Sequence[Pair]) -> None:
    text = as_text(matrix)
    places = list(dict.fromkeys(pair.place for pair in matrix))
    for case in dict.fromkeys(pair.case for pair in matrix):
        line = next(line.strip() for line in text.splitlines() if line.strip().startswith((f"{case}  ", f"{case} +")))
        marks = line.removeprefix(case).split()
        assert marks == [pair.mark for pair in matrix if pair.case == case]
        assert len(marks) == len(places)
    joined = " ".join(text.split())
    assert all(" ".join(reason.split()) in joined for pair in matrix for reason in pair.refused.values())
    assert all(f"{mark} {meaning}" in text for mark, meaning in MEANINGS.items())


def test_a_refusal_of_an_order_of_defenses_names_it(matrix: Sequence[Pair]) -> None:
    found = next(pair for pair in matrix if pair.attack == "GaussNewton" and pair.defenses == ("Sign", "GaussianNoise"))
    assert found.runs == {Adversary.STATIC}
    assert found.mark == "s"
    assert "Sign before GaussianNoise" in found.refused[Adversary.ADAPTIVE]


def test_gradleak_list_prints_it() -> None:
    shown = CliRunner().invoke(app, ["list"], catch_exceptions=False).stdout
    assert "attack x defense: + static and adaptive" in shown
    assert "Sign before GaussianNoise" in " ".join(shown.split())
