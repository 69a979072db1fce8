"""Folders of Hugging Face checkpoints that are refused before anything is read; those that are read are under integrations."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from gradleak.auditing import build_plan
from gradleak.datasets import text_file
from gradleak.models import huggingface
from gradleak.results import InputError, PlanError, UnsupportedError


class Hostile:
    """An object whose pickle leaves a file when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


def checkpoint(folder: Path, **files: str) -> Path:
    """A folder with config.json, and files of these texts."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_pickle_is_refused_and_never_opened(tmp_path: Path) -> None:
    folder, mark = checkpoint(tmp_path / "model"), tmp_path / "ran"
    torch.save({"weight": Hostile(mark)}, folder / "pytorch_model.bin")
    with pytest.raises(
        UnsupportedError, match=r"expected model.safetensors, got pytorch_model.bin, a pickle, which can run"
    ):
        huggingface(folder=folder)
    with pytest.raises(PlanError, match=r"model: .*a pickle"):
        build_plan(
            {
                "model": {"use": "huggingface", "folder": "model"},
                "data": {"use": "python_topics", "count": 1},
                "scenarios": [{"name": "a"}],
            },
            folder=tmp_path,
        )
    assert not mark.exists()
    torch.load(folder / "pytorch_model.bin", weights_only=False)
    assert mark.exists()  # it would have run


@pytest.mark.parametrize("name", ["weights.bin", "../model.safetensors", "/model.safetensors", "weights.pt"])
def test_an_index_of_pickles_or_of_files_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": {"a": name}}))
    with pytest.raises(UnsupportedError, match=r"index.json: expected files .safetensors beside it, got"):
        huggingface(folder=folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"config.json": "{"}, "expected JSON"),
        ({"config.json": "[" * 200_000}, "expected JSON"),
        ({"config.json": "[]"}, "expected an object with model_type"),
        ({"model.safetensors.index.json": "{}"}, "expected an object with weight_map"),
        ({"model.safetensors": "", "adapter_config.json": "{}"}, "got an adapter beside it"),
        ({}, "expected model.safetensors beside config.json, got no weights"),
    ],
    ids=["torn", "deep", "list", "index", "adapter", "empty"],
)
def test_folders_of_another_form_say_what_they_lack(files: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises((InputError, UnsupportedError), match=said):
        huggingface(folder=checkpoint(tmp_path / "model", **files))


def test_what_is_no_folder_and_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a folder with config.json and model.safetensors.*got no folder"):
        huggingface(folder=tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"huggingface.classes: expected none for task = 'causal_lm', got 2"):
        huggingface(folder=tmp_path, task="causal_lm", classes=2)
    with pytest.raises(InputError, match=r"huggingface.task: .*sequence_classification"):
        huggingface(folder=tmp_path, task="translation")


@pytest.mark.parametrize("folder", [None, 5, b"here"])
def test_what_is_no_path_is_refused(folder: object) -> None:
    with pytest.raises(InputError, match=r"huggingface.folder: expected the path of a folder, got"):
        huggingface(folder=folder)  # type: ignore[arg-type]


@pytest.mark.parametrize("folder", ["a" * 5000, "a\0b"], ids=["long", "zero"])
def test_a_name_that_no_system_takes_is_refused(folder: str) -> None:
    with pytest.raises(InputError, match=r"expected (the path of a folder|a folder with config.json)"):
        huggingface(folder=folder)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "part.safetensors"])
def test_links_out_of_the_folder_are_not_followed(name: str, tmp_path: Path) -> None:
    folder, outside = checkpoint(tmp_path / "model"), tmp_path / "outside"
    outside.write_text(json.dumps({"model_type": "bert"}))
    if name == "part.safetensors":
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    with pytest.raises(UnsupportedError, match=r"expected a file of this folder, got a link to .*outside"):
        huggingface(folder=folder)


def test_without_transformers_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "model", **{"model.safetensors": ""})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"transformers, .*is not installed: run `pip install gradleak\[text\]`"):
        huggingface(folder=folder)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a sentence\n")
    folder = checkpoint(tmp_path / "model", **{"tokenizer.json": "{}"})
    with pytest.raises(InputError, match=r"expected vocab.txt, or vocab.json with merges.txt, got neither; tokenizer"):
        text_file(path=tmp_path / "text.txt", count=1, vocabulary=folder)
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    with pytest.raises(InputError, match=r"vocab.json: expected `merges` too"):
        text_file(path=tmp_path / "text.txt", count=1, vocabulary=folder)
