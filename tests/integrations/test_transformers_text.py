"""Hugging Face models with random weights, audited as their users call them, and the updates that they save."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gradleak as gl
from gradleak.attacks import SpanSearch, TokenRows
from gradleak.auditing import load_plan, run_plan
from gradleak.auditing.new_plan import Wishes, new_plan
from gradleak.core import Batch, Domain, HonestButCurious, Objective, Release, Update, Vocabulary
from gradleak.models import huggingface
from gradleak.results import InputError, Outcome

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

IDS = torch.tensor([[7, 19, 4, 55, 23, 11, 90, 42, 8]])
ENCODING = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "token_type_ids": torch.zeros_like(IDS)}
QUIET = gl.AuditOptions(quiet=True)

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def bert(kind: str = "BertForSequenceClassification", *, layers: int = 2, width: int = 32) -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=500, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width
    )
    return getattr(transformers, kind)(config).eval()


def gpt2(kind: str = "GPT2LMHeadModel", *, layers: int = 2, **settings: Any) -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=500,
        n_embd=32,
        n_layer=layers,
        n_head=2,
        n_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **settings,
    )
    return getattr(transformers, kind)(config).eval()


def audited(model: torch.nn.Module, batch: Any, out: Path, **settings: Any) -> gl.Record:
    return gl.audit(model, batch, out=out, options=QUIET, measures=[], **settings)


def test_a_sentence_behind_bert_comes_out_word_for_word(tmp_path: Path) -> None:
    tables = Objective.from_module(bert()).token_tables()
    assert tables.word == "bert.embeddings.word_embeddings.weight"
    assert tables.position == "bert.embeddings.position_embeddings.weight"
    record = audited(bert(), (ENCODING, torch.tensor([1])), tmp_path)
    assert record.verdicts[0].details["token_error"] == 0.0
    assert all(one.control.passed for one in record.findings if one.control is not None)


def test_a_masked_sentence_comes_out_with_its_mask(tmp_path: Path) -> None:
    labels = torch.full_like(IDS, -100)
    labels[0, 3] = 61
    record = audited(bert("BertForMaskedLM"), {**ENCODING, "labels": labels}, tmp_path, loss="masked_lm")
    assert record.verdicts[0].details["token_error"] == 0.0


def test_all_but_the_last_word_behind_a_tied_gpt2_come_out(tmp_path: Path) -> None:
    record = audited(gpt2(), ENCODING, tmp_path, loss="causal_lm")
    assert record.verdicts[0].details["token_error"] == pytest.approx(1 / 9)


def test_the_last_word_of_an_untied_gpt2_comes_from_its_head(tmp_path: Path) -> None:
    model = gpt2(tie_word_embeddings=False)
    objective, release = Objective.from_module(model, loss="causal_lm"), Release(gl.FedSGD())
    batch = Batch.from_encoding(ENCODING, vocabulary=Vocabulary(size=500))
    update = release(objective, batch, torch.Generator().manual_seed(0))
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = TokenRows()(update, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.tokens.tolist() == IDS.tolist()
    record = audited(model, ENCODING, tmp_path, loss="causal_lm")
    assert record.verdicts[0].details["token_error"] == 0.0


@pytest.mark.parametrize("width", [32, 64, 128])
def test_two_sentences_one_of_them_padded_come_out_of_bert(width: int, tmp_path: Path) -> None:
    """The spans count the 14 tokens that are there, not the 18 places of the batch."""
    for seed in range(4):
        torch.manual_seed(seed)  # transformers draws weights from it
        ids = torch.randint(3, 500, (2, 9), generator=torch.Generator().manual_seed(seed))
        mask = torch.ones_like(ids)
        mask[1, 5:] = 0
        encoding = {"input_ids": ids * mask, "attention_mask": mask}
        batch = Batch.from_encoding(encoding, torch.tensor([0, 1]), vocabulary=Vocabulary(size=500))
        objective, release = Objective.from_module(bert(width=width)), Release(gl.FedSGD())
        update = release(objective, batch, torch.Generator().manual_seed(0))
        knowledge = HonestButCurious().disclose(objective, release, batch)
        found = SpanSearch()(update, knowledge, generator=torch.Generator().manual_seed(0))
        assert found.details["tokens"] == 14
        assert found.tokens is not None
        assert sorted(found.tokens.tolist()) == sorted(batch.inputs.tolist())
        assert (found.outcome is Outcome.CONVERGED) or "without a clear gap" in found.note


def test_an_image_behind_vit_is_a_pair(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = transformers.ViTForImageClassification(config).eval()
    attacks = {"ig": gl.InvertingGradients(iterations=3, restarts=1)}
    record = audited(model, (torch.rand(1, 3, 8, 8), torch.tensor([1])), tmp_path, attacks=attacks)
    assert [one.status for one in record.findings if one.item == "release/example 0/ig"] == ["done"]


def adapted(model: torch.nn.Module, *, rank: int = 16, trained: bool = False, **settings: Any) -> torch.nn.Module:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=rank, init_lora_weights=not trained, **settings)
    return peft.get_peft_model(model, config).eval()


LORA: dict[str, Callable[..., torch.nn.Module]] = {
    "bert": lambda **settings: adapted(
        bert(layers=3), task_type="SEQ_CLS", target_modules=["query", "value"], **settings
    ),
    "gpt2": lambda **settings: adapted(
        gpt2("GPT2ForSequenceClassification", layers=3),
        task_type="SEQ_CLS",
        target_modules=["c_attn"],
        fan_in_fan_out=True,
        **settings,
    ),
}


@pytest.mark.parametrize("trained", [False, True], ids=["before the first step", "trained"])
@pytest.mark.parametrize("kind", LORA)
def test_a_sentence_shorter_than_the_rank_comes_out_of_lora(kind: str, trained: bool, tmp_path: Path) -> None:
    record = audited(LORA[kind](trained=trained), (ENCODING, torch.tensor([1])), tmp_path)
    assert record.verdicts[0].details["token_error"] == 0.0
    found = {one.item: one for one in record.findings}
    assert found["release/example 0/token_rows"].status == "refused"
    assert "frozen and not shared" in found["release/example 0/token_rows"].note
    short = audited(LORA[kind](rank=4), (ENCODING, torch.tensor([1])), tmp_path / "short")
    spans = next(one for one in short.findings if one.item == "release/example 0/span_search")
    assert "nothing is claimed" in spans.note


def released(model: torch.nn.Module) -> tuple[Update, Objective, Release, Batch]:
    objective, release = Objective.from_module(model), Release(gl.FedSGD())
    batch = Batch(IDS, torch.tensor([1]), Domain.tokens(Vocabulary(size=500), 9))
    return release(objective, batch, torch.Generator().manual_seed(0)), objective, release, batch


def test_weights_that_peft_saved_are_read_as_an_update(tmp_path: Path) -> None:
    """A client saves its adapter after one step of SGD, under the names that peft gives them."""
    # In float32 the difference of weights loses most digits of the small gradient of a random network.
    model = LORA["bert"](trained=True).double()
    update, objective, _, batch = released(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in update.tensors:
                parameter -= 0.1 * update.tensors[name]
    model.save_pretrained(tmp_path)
    names = list(load_file(tmp_path / "adapter_model.safetensors"))
    assert not any(".default." in name for name in names)
    seen = Update.load(tmp_path / "adapter_model.safetensors", kind="weights")
    aligned = seen.align(objective)
    assert list(aligned.tensors) == list(objective.params)
    for name, tensor in aligned.tensors.items():
        torch.testing.assert_close(tensor, 0.1 * update.tensors[name], rtol=1e-3, atol=1e-6)
    release = Release(gl.FedAvg(learning_rate=0.1))
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = SpanSearch()(seen, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.tokens.tolist() == IDS.tolist()


def test_gradients_under_the_names_of_transformers_are_read(tmp_path: Path) -> None:
    model = bert()
    update, objective, release, batch = released(model)
    model(input_ids=IDS, labels=torch.tensor([1])).loss.backward()
    save_file(
        {name: one.grad.contiguous() for name, one in model.named_parameters() if one.grad is not None},
        tmp_path / "client.safetensors",
    )
    seen = Update.load(tmp_path / "client.safetensors")
    for name, tensor in seen.align(objective).tensors.items():
        torch.testing.assert_close(tensor, update.tensors[name], rtol=1e-3, atol=1e-6)
    knowledge = HonestButCurious().disclose(objective, release, batch)
    found = TokenRows()(seen, knowledge, generator=torch.Generator().manual_seed(0))
    assert found.tokens.tolist() == IDS.tolist()


WORDS = ["the", "of", "and", "to", "in", "is", "it", "value", "function", "list", "string", "name", "class", "returns"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
PLAN = """
name = "checkpoint"
seed = 3
[model]
use = "huggingface"
folder = "model"
[data]
use = "python_topics"
vocabulary = "model"
count = 1
length = 40
[threat]
use = "HonestButCurious"
public = { use = "python_topics", vocabulary = "model", count = 20, length = 40, public = true }
[attacks.rows]
use = "TokenRows"
[[scenarios]]
name = "undefended"
attacks = { rows = "all" }
"""


def checkpoint(folder: Path, model: torch.nn.Module, *, words: list[str]) -> Path:
    """A folder as `save_pretrained` writes it, with a vocabulary of pieces."""
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def pieces() -> list[str]:
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"##{one}" for one in LETTERS), *LETTERS, ".", ","]


def small(kind: str, words: int, **settings: Any) -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=words,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=40,
        **settings,
    )
    return getattr(transformers, kind)(config).eval()


def test_a_plan_audits_the_folder_of_a_checkpoint(tmp_path: Path) -> None:
    words = pieces()
    model = small("BertForSequenceClassification", len(words))
    checkpoint(tmp_path / "model", model, words=words)
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = load_plan(tmp_path / "plan.toml")
    stored = dict(model.named_parameters())
    assert all(torch.equal(one, stored[name]) for name, one in plan.site.objective.params.items())
    record = run_plan(plan, tmp_path / "out", jobs=1)
    assert {one.verdict for one in record.verdicts} == {"leaks"}
    assert record.verdicts[0].details["token_error"] == 0.0


def test_only_the_safetensors_of_a_folder_are_read_and_no_code_of_it_runs(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "ran",)

    folder = checkpoint(tmp_path / "model", small("BertForMaskedLM", 60), words=pieces())
    torch.save({"weight": Hostile()}, folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    own = {f"AutoModelFor{kind}": "hostile.Model" for kind in ("MaskedLM", "SequenceClassification")}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": own, "architectures": ["Model"]}))
    (folder / "hostile.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: ...\n")
    model = huggingface(folder=folder, task="masked_lm")
    assert type(model).__name__ == "BertForMaskedLM"
    with pytest.warns(
        UserWarning, match=r"the weights lack bert.pooler.dense.bias.*classifier.weight, which were drawn"
    ):
        first = huggingface(folder=folder, classes=3)
    with pytest.warns(UserWarning, match="which were drawn"):
        second = huggingface(folder=folder, classes=3)
    assert first.classifier.weight.shape == (3, 32)
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    assert not (tmp_path / "ran").exists()


def test_classes_that_a_head_does_not_have_are_refused_by_name(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", small("BertForSequenceClassification", 60), words=pieces())
    with pytest.raises(InputError, match=r"expected classifier.bias of shape \(5,\) .*got \(2,\); check classes = 5"):
        huggingface(folder=folder, classes=5)
    (folder / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(InputError, match="expected a checkpoint of transformers that fits"):
        huggingface(folder=folder)


def test_a_byte_order_mark_and_the_links_of_the_cache_are_read(tmp_path: Path) -> None:
    cache = tmp_path / "models--a--b"
    (cache / "snapshots").mkdir(parents=True)
    model = small("BertForSequenceClassification", 60)
    folder = checkpoint(cache / "snapshots" / "0123", model, words=pieces())
    config = folder / "config.json"
    config.write_bytes(b"\xef\xbb\xbf" + config.read_bytes())
    (cache / "blobs").mkdir()
    (folder / "model.safetensors").rename(cache / "blobs" / "4567")
    (folder / "model.safetensors").symlink_to(Path("../../blobs/4567"))
    read = huggingface(folder=folder)
    assert torch.equal(read.classifier.weight, model.classifier.weight)


def test_weights_of_another_model_or_that_are_no_numbers_are_refused_and_what_is_drawn_has_its_share(
    tmp_path: Path,
) -> None:
    model = small("BertForSequenceClassification", 60)
    folder = checkpoint(tmp_path / "model", model, words=pieces())
    file = folder / "model.safetensors"
    whole = load_file(file)

    def stored(tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, file, metadata={"format": "pt"})

    stored({name.replace("bert.", "other."): one for name, one in whole.items()})
    with pytest.raises(InputError, match=r"lacks \d+ of its \d+ tensors, as bert\..*, and has others, as other\."):
        huggingface(folder=folder)
    stored(whole | {"bert.pooler.dense.bias": torch.full_like(whole["bert.pooler.dense.bias"], torch.nan)})
    with pytest.raises(InputError, match=r"expected finite weights, got NaN or infinity in bert.pooler.dense.bias"):
        huggingface(folder=folder)
    stored({name: one for name, one in whole.items() if not name.startswith("classifier.")})
    with pytest.warns(UserWarning, match=r"2 of \d+ tensors, \d\.\d% of the numbers; .* whose head is new"):
        huggingface(folder=folder)
    stored({name: one for name, one in whole.items() if ".query." not in name})
    with pytest.warns(UserWarning, match=r"parts of the body of the model are new, not its head alone"):
        huggingface(folder=folder)


def test_init_writes_a_plan_of_a_checkpoint(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", small("BertForSequenceClassification", len(pieces())), words=pieces())
    wishes = Wishes(preset="quick", arguments={"folder": str(folder)}, vocabulary=str(folder))
    lines = tmp_path / "text.txt"
    lines.write_text("the value of the function.\nit returns a list of values.\nthe name is a string.\n")
    made = new_plan("huggingface", str(lines), wishes)
    assert f'folder = "{folder}"' in made.text
    assert type(made.plan.site.objective.parts(torch.nn.Module)[0]).__name__ == "BertForSequenceClassification"
