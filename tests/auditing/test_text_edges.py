"""Text at its edges: nothing claimed, ids that no vocabulary has, one token, padding alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import gradleak as gl
from gradleak.attacks import Attack, SpanSearch, TokenRows
from gradleak.core import Batch, Domain, Objective, Reconstruction, Vocabulary
from gradleak.models import transformer
from gradleak.results import InputError, Outcome, Record, Status, VerdictKind
from tests.tokens import VOCABULARY

ATTACKS = {"rows": TokenRows(), "spans": SpanSearch()}


@dataclass(frozen=True, kw_only=True)
class Claims(Attack):
    """An attack that claims the same tokens, whatever the update says."""

    claims_tokens: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("domain",)
    name: ClassVar[str] = "claims"
    summary: ClassVar[str] = "always the same claim"

    tokens: tuple[tuple[int, ...], ...] = ()
    bag: tuple[int, ...] | None = None

    def estimate(self, knowledge: Any) -> float:
        return 0.0

    def _recover(self, update: Any, knowledge: Any, generator: Any, monitor: Any) -> Reconstruction:
        return Reconstruction(
            inputs=None,
            targets=None,
            loss=None,
            outcome=Outcome.CONVERGED,
            tokens=torch.tensor(self.tokens) if self.tokens else None,
            bag=None if self.bag is None else torch.tensor(self.bag, dtype=torch.int64),
        )


def audited(batch: Batch, out: Path, attacks: Any = None, **settings: Any) -> Record:
    model = transformer(words=40, length=12, width=16, std=0.2, **settings)
    loss = "cross_entropy" if batch.targets.dim() == 1 else "causal_lm"
    options = gl.AuditOptions(quiet=True, pictures=True)
    return gl.audit(model, batch, loss=loss, out=out, attacks=attacks or ATTACKS, measures=[], options=options)


def batch_of(*rows: list[int], targets: list[Any] | None = None) -> Batch:
    ids = torch.tensor(rows)
    made = torch.tensor([1] * len(rows) if targets is None else targets)
    return Batch(ids, made, Domain.tokens(VOCABULARY, ids.shape[1]))


@pytest.mark.parametrize(
    ("claim", "reads"),
    [
        (Claims(), "unsupported"),
        (Claims(tokens=((-1, -1, -1, -1),)), "□ □ □ □"),
        (Claims(bag=()), "unsupported"),
        (Claims(tokens=((1, 5, 4000, 2, 7, 7, 7),)), "~~4000~~"),
    ],
)
def test_odd_claims_are_scored_and_shown(claim: Claims, reads: str, tmp_path: Path) -> None:
    record = audited(batch_of([1, 5, 6, 2]), tmp_path, {"own": claim})
    own = next(one for one in record.findings if one.item == "release/example 0/own")
    assert own.status is Status.DONE
    assert own.value("exact_hits") in (None, 0.0)
    # Whoever claims the same of everything does not find the planted sentence either.
    assert record.verdicts[0].reason == "control_failed"
    assert reads in gl.write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
    gl.write_html(record, tmp_path / "report.html")


def test_a_batch_of_one_token_is_rebuilt_and_no_better_than_luck(tmp_path: Path) -> None:
    record = audited(batch_of([7]), tmp_path)
    found = next(one for one in record.findings if one.item == "release/example 0/rows")
    assert found.value("exact_hits") == 1.0
    assert (record.verdicts[0].verdict, record.verdicts[0].reason) == (VerdictKind.INCONCLUSIVE, "words_leak")


def test_a_hidden_place_inside_of_a_sentence_is_an_outcome(tmp_path: Path) -> None:
    record = audited(batch_of([1, -1, 6, 2]), tmp_path)
    assert {one.status for one in record.findings} <= {Status.DONE, Status.REFUSED}


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (batch_of([1, 5, 6, 2], [-1] * 4), r"at least one token in every sentence, got none in example 1 \(all -1"),
        (batch_of([0] * 4), "at least one word in every sentence, got one of padding and special tokens alone"),
        (batch_of([1, 5, 40, 2]), r"expected ids from 0 to 39 \(the vocabulary\), or -1 for no token, got values from 1 to 40"),
        (batch_of([1, 5, -2, 2]), "got values from -2 to 5; use the tokenizer of the model"),
        (batch_of([7, 8, 9], targets=[[-100] * 3]), "expected a finite number, got nan; check whether any target counts"),
    ],
)  # fmt: skip
def test_refusals_say_what_is_wrong_with_the_text(batch: Batch, message: str, tmp_path: Path) -> None:
    settings = {"causal": True, "classes": 0} if batch.targets.dim() == 2 else {}
    with pytest.raises(InputError, match=message):
        audited(batch, tmp_path, **settings)


def test_an_update_of_zeros_is_no_claim() -> None:
    model = transformer(words=40, length=12, width=16, std=0.2)
    objective, release, batch = Objective.from_module(model), gl.Release(gl.FedSGD()), batch_of([1, 5, 6, 2])
    update = release(objective, batch, torch.Generator().manual_seed(0))
    zeros = {name: torch.zeros_like(tensor) for name, tensor in update.tensors.items()}
    nothing = replace(update, tensors=zeros)
    knowledge = gl.HonestButCurious().disclose(objective, release, batch)
    for attack in ATTACKS.values():
        found = attack(nothing, knowledge, generator=torch.Generator().manual_seed(0))
        assert found.tokens is None
        assert found.outcome in (Outcome.NO_SIGNAL, Outcome.NOT_IDENTIFIABLE)


def test_a_vocabulary_without_words_shows_ids(tmp_path: Path) -> None:
    bare = Batch(torch.tensor([[3, 5, 6]]), torch.tensor([1]), Domain.tokens(Vocabulary(size=40), 3))
    record = audited(bare, tmp_path)
    assert "**3** **5** **6**" in gl.write_markdown(record, tmp_path / "report.md").read_text(encoding="utf-8")
