"""Text at its edges: nothing claimed, ids that no vocabulary has, one token, padding alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import gradleak as gl
from gradleak.attacks import Attack, SpanSearch, TokenRows
from gradleak.auditing import cautions, default_plan
from gradleak.core import Batch, Domain, Objective, Reconstruction, Vocabulary
from gradleak.models import transformer
from gradleak.results import InputError, Outcome, Record, Status, VerdictKind
from tests.tokens import VOCABULARY, tiny

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
        (batch_of([1, 5, 40, 2]), r"at most 40 ids \(the rows of word.weight\) .* got one of 40 ids, and ids up to 40; make the"),
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


def test_an_encoding_without_labels_is_no_batch_of_a_classifier(tmp_path: Path) -> None:
    encoding = {"input_ids": torch.tensor([[1, 5, 9, 2]]), "attention_mask": torch.ones(1, 4)}
    classifier = transformer(words=40, length=12, width=16)
    with pytest.raises(
        InputError, match=r"expected one class an example, \(1,\), got \(1, 4\); pass the labels.*\(encoding, l"
    ):
        gl.audit(classifier, encoding, out=tmp_path)
    language = transformer(words=40, length=12, width=16, classes=0, causal=True)
    with pytest.raises(InputError, match=r"outputs \(1, 4, 40\) .*got \(1, 4\), one a place; pass loss='causal_lm'"):
        gl.audit(language, encoding, out=tmp_path)


@pytest.mark.parametrize(
    ("size", "ids", "message"),
    [
        (60, [1, 5, 9, 2], r"at most 40 ids .*got one of 60 ids, and ids up to 9; state that .*Vocabulary\(size=40\)"),
        (
            30,
            [1, 5, 35, 2],
            r"at most 40 ids .*got one of 30 ids, and ids up to 35; state that .*Vocabulary\(size=40\)",
        ),
        (60, [1, 5, 55, 2], r"at most 40 ids .*got one of 60 ids, and ids up to 55; make the ids with the model's own"),
    ],
    ids=["large", "small", "another model's"],
)
def test_a_vocabulary_of_another_size_is_told_with_both_sizes(
    size: int, ids: list[int], message: str, tmp_path: Path
) -> None:
    encoding = {"input_ids": torch.tensor([ids])}
    batch = Batch.from_encoding(encoding, torch.tensor([1]), vocabulary=Vocabulary(size=size))
    with pytest.raises(InputError, match=message):
        gl.audit(transformer(words=40, length=12, width=16), batch, out=tmp_path)


def test_masks_say_one_for_a_token_whatever_their_format() -> None:
    ids = torch.tensor([[1, 9, 17, 2, 0, 0]])
    there = ids != 0
    expected = torch.tensor([[1, 9, 17, 2, -1, -1]])
    for mask in (there, there.long(), there.float(), there.half()):
        encoding = {"input_ids": ids, "attention_mask": mask}
        assert torch.equal(Batch.from_encoding(encoding, torch.tensor([1])).inputs, expected)
    added = {"input_ids": ids, "attention_mask": torch.where(there, 0.0, float("-inf"))}
    with pytest.raises(InputError, match="expected an attention_mask of 1 for a token"):
        Batch.from_encoding(added, torch.tensor([1]))


def test_ids_are_whole_numbers_and_images_are_a_pair() -> None:
    whole = Batch.from_encoding({"input_ids": torch.tensor([[1.0, 9.0, 2.0]])}, torch.tensor([1]))
    assert whole.inputs.tolist() == [[1, 9, 2]]
    with pytest.raises(InputError, match="expected whole numbers in input_ids"):
        Batch.from_encoding({"input_ids": torch.tensor([[1.0, 9.5, 2.0]])}, torch.tensor([1]))
    with pytest.raises(InputError, match=r"images are a pair, \(encoding\['pixel_values'\], labels\)"):
        Batch.from_encoding({"pixel_values": torch.rand(1, 3, 8, 8)})


def claimed(model: torch.nn.Module, ids: torch.Tensor, attack: Attack, loss: str = "cross_entropy") -> Reconstruction:
    objective, targets = Objective.from_module(model, loss=loss), torch.ones(len(ids), dtype=torch.int64)
    batch = Batch(ids, ids.masked_fill(ids < 0, -100) if loss != "cross_entropy" else targets, domain_of(ids))
    release = gl.Release(gl.FedSGD())
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = gl.HonestButCurious().disclose(objective, release, batch)
    return attack(update, knowledge, generator=torch.Generator().manual_seed(0))


def domain_of(ids: torch.Tensor) -> Domain:
    return Domain.tokens(VOCABULARY, ids.shape[1])


@pytest.mark.parametrize("causal", [False, True], ids=["encoder", "decoder"])
def test_padding_in_front_is_claimed_nowhere(causal: bool) -> None:
    ids = torch.tensor([[-1, -1, -1, 1, 9, 30, 17, 2]])
    found = claimed(tiny(causal=causal), ids, TokenRows())
    assert torch.equal(found.tokens, ids)
    assert sorted(found.bag.tolist()) == [1, 2, 9, 17, 30]


def test_equal_sentences_are_claimed_once_and_a_sentence_of_one_word_is_read() -> None:
    equal = torch.tensor([[1, 9, 30, 17, 2], [1, 9, 30, 17, 2]])
    model = transformer(words=40, length=8, width=32, blocks=3, std=0.2)
    found = claimed(model, equal, SpanSearch())
    assert {tuple(row) for row in found.tokens.tolist()} == {tuple(equal[0].tolist())}
    assert (found.outcome, "are equal to one that is claimed" in found.note) == (Outcome.NOT_IDENTIFIABLE, True)
    assert claimed(tiny(), torch.tensor([[9]]), TokenRows()).tokens.tolist() == [[9]]


def test_targets_that_never_count_are_refused() -> None:
    encoding = {"input_ids": torch.tensor([[1, 9, 17, 2]]), "labels": torch.full((1, 4), -100)}
    with pytest.raises(InputError, match=r"whether any target counts \(not -100"):
        gl.audit(tiny(classes=None), encoding, loss="masked_lm", options=gl.AuditOptions(quiet=True))


def test_too_many_tokens_or_ids_are_refused_in_words_of_text() -> None:
    options = gl.AuditOptions(quiet=True)
    with pytest.raises(InputError, match=r"does not accept inputs of shape \(1, 20\)"):
        gl.audit(tiny(), (torch.full((1, 20), 9), torch.tensor([1])), options=options)
    larger = Batch(torch.tensor([[1, 9, 2]]), torch.tensor([1]), Domain.tokens(Vocabulary(size=60), 3))
    with pytest.raises(InputError, match=r"at most 40 ids \(the rows of words\.weight\) .*got one of 60 ids"):
        gl.audit(tiny(), larger, options=options)


def test_russian_words_are_compared_as_ids_and_not_as_letters(tmp_path: Path) -> None:
    words = (
        "[PAD]",
        "[CLS]",
        "[SEP]",
        *["съешь", "же", "ещё", "этих", "мягких", "французских", "булок"],
        *(f"w{n}" for n in range(30)),
    )
    vocabulary = Vocabulary(words=words, padding=0, special={1: 0, 2: -1})
    ids = torch.tensor([[1, 8, 4, 9, 3, 6, 2]])
    batch = Batch(ids, torch.tensor([1]), Domain.tokens(vocabulary, 7))
    record = gl.audit(tiny(), batch, measures=[], out=tmp_path, options=gl.AuditOptions(quiet=True, pictures=True))
    found = next(one for one in record.findings if one.item == "release/example 0/token_rows")
    assert {found.value(name) for name in ("rouge_1", "rouge_l", "google_bleu", "bag_recall")} == {1.0}
    gl.write_markdown(record, tmp_path / "report.md")
    assert "французских" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_ids_that_are_their_own_masked_targets_are_pointed_out() -> None:
    ids = torch.tensor([[1, 6, 7, 8, 2, 9]])
    network = tiny(classes=None)
    for targets, told in ((ids, True), (torch.tensor([[-100, 6, -100, -100, -100, -100]]), False)):
        batch = Batch(ids, targets, Domain.tokens(VOCABULARY, 6))
        plan = default_plan(network, batch, loss="masked_lm", attacks=ATTACKS, measures=[])
        assert any("none is masked" in one for one in cautions(plan)) is told


def test_token_errors_are_bounded_under_defenses_of_single_examples(tmp_path: Path) -> None:
    batch = Batch(
        torch.tensor([[1, 6, 7, 8, 2, 9], [1, 9, 8, 7, 2, 6]]), torch.tensor([0, 1]), Domain.tokens(VOCABULARY, 6)
    )
    private = gl.DPSGD(clip_norm=1.0, noise_std=1.0, noise="sum")
    record = gl.audit(
        tiny(),
        batch,
        release=gl.Release(gl.FedSGD(), [private]),
        attacks={"rows": TokenRows()},
        measures=[gl.risk.TokenError(most_candidates=3, most_places=1)],
        options=gl.AuditOptions(quiet=True),
        out=tmp_path / "run",
    )
    scores = {score.name: score for one in record.findings for score in one.scores}
    assert scores["token_error_bound"].value is not None
