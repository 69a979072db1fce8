"""Files beside a record: pictures, rows and texts, only when the plan says so, and states from which a killed run goes on."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gradleak.attacks import Checkpoint
from gradleak.audits.base.site import Site
from gradleak.core import NO_TOKEN, Batch, Domain, DomainKind, Reconstruction, Vocabulary
from gradleak.results.files import make_folder, write_file
from gradleak.scoring import score_sentences

FOLDER = "pictures"


def save_picture(out: Path, name: str, inputs: Tensor | None, domain: Domain) -> str | None:
    """The path, relative to `out`, of a file that shows the examples of a batch; None for data that no page can show.

    Images are a PNG, side by side; rows of a table a JSON list of lists, in the units of the data.

    Args:
        out: folder of the record.
        name: what the file shows; made into its name.
        inputs: (b, c, h, w) or (b, columns) in model-input units; pixels outside [0, 1] are cut off.
        domain: how to undo the normalization.
    """
    if inputs is None:
        return None
    values = inputs.detach().cpu().double()
    if domain.kind is DomainKind.IMAGE and len(domain.shape) == 3 and domain.shape[0] in (1, 3):
        content, suffix = _png(domain.to_pixels(values).clamp(0, 1)), "png"
    elif domain.kind is DomainKind.TABULAR and len(domain.shape) == 1:
        content, suffix = json.dumps(_in_data_units(values, domain).tolist()).encode("ascii"), "json"
    else:
        return None
    relative = f"{FOLDER}/{file_name(name)}.{suffix}"
    make_folder(out / FOLDER)
    write_file(out / relative, content)
    return relative


def _png(pixels: Tensor) -> bytes:
    row = np.concatenate([image.permute(1, 2, 0).numpy() for image in pixels], axis=1)
    values = np.round(row * 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(values[:, :, 0] if values.shape[2] == 1 else values).save(content, format="PNG")
    return content.getvalue()


def _in_data_units(rows: Tensor, domain: Domain) -> Tensor:
    low, high = (torch.as_tensor(end, dtype=rows.dtype) for end in (domain.low, domain.high))
    return low + domain.to_pixels(rows) * (high - low)


def save_text(out: Path, name: str, batch: Batch, claim: Reconstruction | None = None) -> str | None:
    """The path, relative to `out`, of a JSON file with the sentences of a batch, or of a claim on it; None for other data.

    A line is a list of pairs: a piece of text, and "word", "special" (a token that is no word), or, of a claim, "right",
    "wrong" (at this place) and "open" (nothing is claimed).

    Args:
        out: folder of the record.
        name: what the text is; made into a file name.
        batch: the truth.
        claim: on it; None for the truth itself.
    """
    vocabulary = None if batch.domain is None else batch.domain.vocabulary
    if vocabulary is None or (claim is not None and claim.tokens is None and claim.bag is None):
        return None
    truths = [row[:length].tolist() for row, length in zip(batch.inputs, batch.lengths.tolist(), strict=True)]
    lines = []
    for truth in truths if claim is None else []:
        ids = [one for one in truth if not _empty(one, vocabulary)]
        states = ["special" if one in vocabulary.uncounted else "word" for one in ids]
        lines.append(list(zip(vocabulary.pieces(ids), states, strict=True)))
    if claim is not None and claim.tokens is not None:
        claims = [
            row[: 1 + max((row >= 0).nonzero()[:, 0].tolist(), default=-1)].tolist() for row in claim.tokens.cpu()
        ]
        pairing = score_sentences(truths, claims, apart=vocabulary.uncounted).pairing
        for truth, place in zip(truths, pairing.claim_of, strict=True):
            ids = [] if place is None else claims[place]
            ids = [*ids, *[NO_TOKEN] * (len(truth) - len(ids))]
            # Nothing is left open at a place that fills up.
            filled = [
                at < len(truth) and one == NO_TOKEN and _empty(truth[at], vocabulary) for at, one in enumerate(ids)
            ]
            kept = [(one, _state(one, truth, at, vocabulary)) for at, one in enumerate(ids) if not filled[at]]
            lines.append(
                list(zip(vocabulary.pieces([one for one, _ in kept]), [state for _, state in kept], strict=True))
            )
    elif claim is not None and claim.bag is not None:
        held = {one for truth in truths for one in truth}
        ids = claim.bag.tolist()
        lines = [list(zip(vocabulary.pieces(ids), ["right" if one in held else "wrong" for one in ids], strict=True))]
    relative = f"{FOLDER}/{file_name(name)}.json"
    make_folder(out / FOLDER)
    content = {"bag": claim is not None and claim.tokens is None, "lines": lines}
    write_file(out / relative, json.dumps(content, ensure_ascii=False).encode())
    return relative


def _empty(one: int, vocabulary: Vocabulary) -> bool:
    """True at a place without a token: one that a mask hides, or padding."""
    return one in (NO_TOKEN, vocabulary.padding)


def _state(one: int, truth: Sequence[int], at: int, vocabulary: Vocabulary) -> str:
    """State of a claimed token, held against the truth at its place."""
    if one == NO_TOKEN:
        return "open"
    if one in vocabulary.uncounted:
        return "special"
    return "right" if at < len(truth) and truth[at] == one else "wrong"


def file_name(name: str) -> str:
    """A file name for `name`: readable, and different for different names."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", name)[:80].strip("._")
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


STATES = "checkpoints"


def state_of(site: Site, out: Path, name: str) -> Checkpoint | None:
    """Place of an attack's state, which outlives it: the run removes it when the findings are in the record.

    Args:
        site: says whether states are kept.
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    if site.checkpoint_seconds is None:
        return None
    return Checkpoint(path=state_path(out, name), seconds=site.checkpoint_seconds, keep=True)


def state_path(out: Path, name: str) -> Path:
    """The file of a state.

    Args:
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    return out / STATES / f"{file_name(name)}.safetensors"
