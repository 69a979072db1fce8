"""Checkpoints of Hugging Face in a folder of one's own, read through transformers without network and without pickles."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradleak.models.initialize import check_sizes
from gradleak.results import InputError, UnsupportedError, member

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_SAID = 300


class CheckpointTask(StrEnum):
    """Head of a checkpoint."""

    SEQUENCE_CLASSIFICATION = "sequence_classification"
    CAUSAL_LM = "causal_lm"
    MASKED_LM = "masked_lm"


def huggingface(
    *,
    folder: str | Path,
    task: CheckpointTask = CheckpointTask.SEQUENCE_CLASSIFICATION,
    classes: int | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """A model of text that `save_pretrained` of transformers wrote into a folder: config.json and model.safetensors.

    Nothing is asked of a network, no code of the folder runs, and no pickle is opened. A head that the weights do not have, as
    that of a classifier to be trained, is drawn, and named in a warning. `text_file` and `python_topics` take the same folder
    as `vocabulary`.

    Args:
        folder: with config.json and model.safetensors, in one file or with its index.
        task: the head: "sequence_classification", "causal_lm" or "masked_lm".
        classes: number of logits of a classifier; None for that of config.json.
        generator: source of what the weights lack; None stands for a new generator with seed 0.

    Returns:
        The network, float32, on the CPU, in eval mode, with attention that can be differentiated twice.

    Raises:
        InputError: for a folder of another form, or weights that do not fit the model.
        UnsupportedError: where the weights are a pickle or an adapter alone, or transformers is not installed.

    Warns:
        UserWarning: naming weights that were drawn.

    Cost: that of reading the weights.
    """
    kind = member("huggingface.task", CheckpointTask, task)
    if classes is not None:
        check_sizes({"classes": classes})
        if kind is not CheckpointTask.SEQUENCE_CLASSIFICATION:
            raise InputError(
                f"huggingface.classes: expected none for task = {kind.value!r}, got {classes}; leave it out"
            )
    place = Path(folder)
    _check(place)
    if importlib.util.find_spec("transformers") is None:
        raise UnsupportedError(
            f"{place}: expected transformers, which reads it, and it is not installed: run `pip install gradleak[text]`"
        )
    import transformers

    reader = {
        CheckpointTask.SEQUENCE_CLASSIFICATION: transformers.AutoModelForSequenceClassification,
        CheckpointTask.CAUSAL_LM: transformers.AutoModelForCausalLM,
        CheckpointTask.MASKED_LM: transformers.AutoModelForMaskedLM,
    }[kind]
    labels = {} if classes is None else {"num_labels": classes}
    try:
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            module, facts = reader.from_pretrained(
                str(place),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **labels,
            )
    except Exception as error:  # readers of transformers raise anything for a file that is not theirs
        said = " ".join(str(error).split())[:_SAID]
        raise InputError(
            f"{place}: expected a checkpoint of transformers that fits task = {kind.value!r}, got {type(error).__name__}: {said}"
        ) from error
    if facts["mismatched_keys"]:
        name, stored, wanted = next(iter(sorted(facts["mismatched_keys"])))
        raise InputError(
            f"{place}: expected {name} of shape {tuple(wanted)} for this config.json and task = {kind.value!r}, got "
            f"{tuple(stored)}" + ("" if classes is None else f"; check classes = {classes}")
        )
    model: nn.Module = module.float().eval()
    _draw(model, facts["missing_keys"], place, generator)
    return model


def _check(place: Path) -> None:
    """Refuse a folder of which something else than safetensors would be read."""
    if not (place / "config.json").is_file():
        raise InputError(
            f"{place}: expected a folder with config.json and model.safetensors, as save_pretrained of transformers writes it, "
            f"got {'a folder without config.json' if place.is_dir() else 'no folder'}"
        )
    try:
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place / 'config.json'}: expected JSON, got {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise InputError(f"{place / 'config.json'}: expected an object with model_type, got none")
    if (place / "adapter_config.json").exists():
        raise UnsupportedError(
            f"{place}: expected a whole model, got an adapter beside it; load both with peft in a function of your own, or merge "
            "them with merge_and_unload() and save that"
        )
    if (place / _WEIGHTS[0]).is_file():
        return
    if (place / _WEIGHTS[1]).is_file():
        _check_index(place / _WEIGHTS[1])
        return
    pickles = sorted(one.name for one in place.iterdir() if one.suffix in _PICKLES)
    if pickles:
        raise UnsupportedError(
            f"{place}: expected model.safetensors, got {pickles[0]}, a pickle, which can run any code when it is opened; where "
            "you trust it, load it with transformers and write the folder anew with save_pretrained"
        )
    raise InputError(f"{place}: expected model.safetensors beside config.json, got no weights")


def _check_index(index: Path) -> None:
    """Refuse an index that names other files than safetensors beside it: transformers opens whatever it names."""
    try:
        held = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{index}: expected JSON, got {error}") from error
    names = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: expected an object with weight_map, the file of each weight, got none")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UnsupportedError(
                f"{index}: expected files .safetensors beside it, got {name!r}: a pickle can run any code when it is opened, and "
                "what lies elsewhere is not of this folder"
            )


def _draw(model: nn.Module, missing: Any, place: Path, generator: torch.Generator | None) -> None:
    """Draw the weights that a checkpoint does not have, from N(0, std²) with the std of its configuration."""
    names = sorted(name for name in missing if name in dict(model.named_parameters()))
    if not names:
        return
    rng = generator if generator is not None else torch.Generator().manual_seed(0)
    std = float(getattr(model.config, "initializer_range", 0.02) or 0.02)
    with torch.no_grad():
        for name in names:
            one = model.get_parameter(name)
            if one.dim() > 1:
                one.normal_(0.0, std, generator=rng)
            else:
                one.fill_(0.0 if name.endswith("bias") else 1.0)
    told = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    warnings.warn(
        f"{place}: the weights lack {told}, which were drawn; the audit is of a model whose head is new", stacklevel=3
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """A block in which transformers prints neither progress nor what weights lack or have beside."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
