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
# A model of which more tensors than this share are missing is not the one that the weights are of.
_MOST_MISSING = 0.5


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

    Nothing is asked of a network, no code of the folder runs, no pickle is opened, and no link out of the folder is followed but
    those of the cache that huggingface_hub keeps. A head that the weights do not have, as that of a classifier to be trained, is
    drawn, and named in a warning with the share of what is missing. `text_file` and `python_topics` take the same folder as
    `vocabulary`.

    Args:
        folder: with config.json and model.safetensors, in one file or with its index.
        task: the head: "sequence_classification", "causal_lm" or "masked_lm".
        classes: number of logits of a classifier; None for that of config.json.
        generator: source of what the weights lack; None stands for a new generator with seed 0.

    Returns:
        The network, float32, on the CPU, in eval mode, with attention that can be differentiated twice.

    Raises:
        InputError: for a folder of another form, or weights that do not fit the model, lack more than half of its tensors, or
            have numbers that are NaN or infinite.
        UnsupportedError: where the weights are a pickle or an adapter alone, a link leaves the folder, or transformers is not
            installed.

    Warns:
        UserWarning: naming weights that were drawn, with their share.

    Cost: that of reading the weights.
    """
    kind = member("huggingface.task", CheckpointTask, task)
    if classes is not None:
        check_sizes({"classes": classes})
        if kind is not CheckpointTask.SEQUENCE_CLASSIFICATION:
            raise InputError(
                f"huggingface.classes: expected none for task = {kind.value!r}, got {classes}; leave it out"
            )
    if not isinstance(folder, str | Path):
        raise InputError(f"huggingface.folder: expected the path of a folder, got {folder!r}")
    place = Path(folder)
    held = _check(place)
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
            # From what was read here: transformers does not read a file that begins with a byte order mark.
            config = transformers.CONFIG_MAPPING[held["model_type"]].from_dict(held, **labels)
            module, facts = reader.from_pretrained(
                str(place),
                config=config,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                attn_implementation="eager",
                ignore_mismatched_sizes=True,
                output_loading_info=True,
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
    _check_whole(model, facts["missing_keys"], facts["unexpected_keys"], place)
    _draw(model, facts["missing_keys"], place, generator)
    return model


def _check(place: Path) -> dict[str, Any]:
    """The configuration of a folder; refuse one of which something else than its own safetensors would be read."""
    try:
        there = (place / "config.json").is_file()
    except (OSError, ValueError) as error:  # a name that no system takes
        raise InputError(
            f"huggingface.folder: expected the path of a folder, got one of {len(str(place))} characters"
        ) from error
    if not there:
        raise InputError(
            f"{place}: expected a folder with config.json and model.safetensors, as save_pretrained of transformers writes it, "
            f"got {'a folder without config.json' if place.is_dir() else 'no folder'}"
        )
    config = _json(place / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(f"{place / 'config.json'}: expected an object with model_type, got none")
    if (place / "adapter_config.json").exists():
        raise UnsupportedError(
            f"{place}: expected a whole model, got an adapter beside it; load both with peft in a function of your own, or merge "
            "them with merge_and_unload() and save that"
        )
    if (place / _WEIGHTS[0]).is_file():
        _check_inside(place / _WEIGHTS[0])
        return config
    if (place / _WEIGHTS[1]).is_file():
        _check_index(place / _WEIGHTS[1])
        return config
    pickles = sorted(one.name for one in place.iterdir() if one.suffix in _PICKLES)
    if pickles:
        raise UnsupportedError(
            f"{place}: expected model.safetensors, got {pickles[0]}, a pickle, which can run any code when it is opened; where "
            "you trust it, load it with transformers and write the folder anew with save_pretrained"
        )
    raise InputError(f"{place}: expected model.safetensors beside config.json, got no weights")


def _json(file: Path) -> Any:
    _check_inside(file)
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: expected JSON, got {error}") from error


def _check_inside(file: Path) -> None:
    """Refuse a link that leaves its folder; in the cache of huggingface_hub files are links to blobs beside the snapshots."""
    real, folder = file.resolve(), file.parent.resolve()
    cached = folder.parent.name == "snapshots" and real.parent == folder.parent.parent / "blobs"
    if not (cached or real.is_relative_to(folder)):
        raise UnsupportedError(
            f"{file}: expected a file of this folder, got a link to {real}; what lies elsewhere is not read: copy it there"
        )


def _check_index(index: Path) -> None:
    """Refuse an index that names other files than safetensors beside it: transformers opens whatever it names."""
    held = _json(index)
    names = held.get("weight_map") if isinstance(held, dict) else None
    if not isinstance(names, dict) or not names:
        raise InputError(f"{index}: expected an object with weight_map, the file of each weight, got none")
    for name in names.values():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UnsupportedError(
                f"{index}: expected files .safetensors beside it, got {name!r}: a pickle can run any code when it is opened, and "
                "what lies elsewhere is not of this folder"
            )
        _check_inside(index.parent / name)


def _check_whole(model: nn.Module, missing: Any, unexpected: Any, place: Path) -> None:
    """Refuse weights that are of another model, and those that are no numbers."""
    names = dict(model.named_parameters())
    lacking = sorted(name for name in missing if name in names)
    if len(lacking) > _MOST_MISSING * len(names):
        beside = sorted(unexpected)
        raise InputError(
            f"{place}: expected the weights of {type(model).__name__}, got a file that lacks {len(lacking)} of its {len(names)} "
            f"tensors, as {lacking[0]}" + (f", and has others, as {beside[0]}" if beside else "")
        )
    broken = [name for name, one in names.items() if name not in lacking and not bool(torch.isfinite(one).all())]
    if broken:
        raise InputError(
            f"{place}: expected finite weights, got NaN or infinity in {broken[0]}"
            + (f" and {len(broken) - 1} more tensors" if len(broken) > 1 else "")
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
    every = sum(one.numel() for one in model.parameters())
    drawn = sum(model.get_parameter(name).numel() for name in names) / every
    body = f"{getattr(model, 'base_model_prefix', '')}."
    inside = any(name.startswith(body) and ".pooler." not in name for name in names)
    new = (
        "parts of the body of the model are new, not its head alone"
        if inside
        else "the audit is of a model whose head is new"
    )
    warnings.warn(
        f"{place}: the weights lack {told}, which were drawn: {len(names)} of {len(list(model.parameters()))} tensors, "
        f"{drawn:.1%} of the numbers; {new}",
        stacklevel=3,
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
