"""Damaged and lying update files: each is refused in one line, or an update that an audit can take."""

from __future__ import annotations

import functools
import io
import json
import math
import random
import struct
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradleak.attacks import InvertingGradients
from gradleak.auditing import Controls, Plan, default_plan, run_plan
from gradleak.core import Batch, Update, UpdateKind
from gradleak.results import GradleakError, Status
from tools.fuzz.harness import Fuzzer

# The share of updates that fit the model that are audited.
AUDITED = 0.3
LONGEST_LINE = 6000
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool, torch.complex64)
NUMBERS = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, 3.4e38, 1e-45, 1e300, 5e-324, 65536.0, -1.0)
NAMES = (
    "",
    "w",
    "0.weight",
    "module.0.weight",
    "0",
    "w\0",
    "\u202ew",
    "w\x1b[2J",
    "a\nb",
    "ä",
    "x" * 1001,
    "x" * 10**6,
)
KEYS = ("alignment", "release", "mode", "loss", "file", "sign", "pooling", "approximation", "visible", "n")


def case(draw: random.Random, folder: Path) -> str:
    """One file: drawn, damaged, loaded, held against a model, and now and then audited."""
    suffix, make = draw.choice(FORMATS)
    tensors = _tensors(draw)
    content = make(draw, tensors)
    if draw.random() < 0.3:
        content = _scratched(draw, content)
    path = folder / f"update{suffix}"
    path.write_bytes(content)
    kind, sign = draw.choice([None, None, "gradient", "delta"]), draw.choice([1, 1, 1, -1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            update = Update.load(path, kind=kind, sign=sign)
    except GradleakError as error:
        return _refused(error, "refused")
    _check(update)
    site = _plan().site
    try:
        update.align(site.objective)
    except GradleakError as error:
        return _refused(error, "does not fit the model")
    return _audited(update) if draw.random() < AUDITED else "fits the model"


def _check(update: Update) -> None:
    """Assert that an update is valid by schema and bounds."""
    assert isinstance(update.kind, UpdateKind)
    assert 0 < len(update.tensors) <= 50_000
    assert len(json.dumps(update.provenance, allow_nan=False)) <= 2**20
    assert not update.alignment
    for name, tensor in update.tensors.items():
        assert name.isprintable()
        assert len(name) <= 1000
        assert type(tensor) is Tensor
        assert tensor.layout is torch.strided
        assert tensor.device.type == "cpu"
        assert not tensor.requires_grad
        assert not tensor.is_quantized
        assert tensor.dim() <= 64
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    repr(update)


def _audited(update: Update) -> str:
    audited = _plan()
    scenario = replace(audited.site.scenarios[0], updates={0: update})
    with tempfile.TemporaryDirectory() as out:
        try:
            record = run_plan(replace(audited, site=replace(audited.site, scenarios=[scenario])), out, jobs=1)
        except GradleakError as error:
            return _refused(error, "refused by the audit")
        failed = [one for one in record.findings if one.status is Status.FAILED]
        assert not failed, f"{failed[0].item}: {failed[0].note}"
        return f"audited, {record.verdicts[-1].verdict.value}"


def _refused(error: GradleakError, ending: str) -> str:
    """Assert that a refusal is one line that a terminal can show, and no allocation that failed."""
    line = str(error)
    assert "\n" not in line
    assert line.isprintable(), repr(line)
    assert len(line) <= LONGEST_LINE, f"{len(line)} letters"
    assert not isinstance(error.__cause__, MemoryError), "memory was asked for before the size was looked at"
    return ending


@functools.cache
def _plan() -> Plan:
    """A small audit of the update that is not damaged, without controls."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    batch = Batch(torch.rand(1, 4, generator=generator), torch.tensor([1]))
    plan = default_plan(model, batch, attacks={"attack": InvertingGradients(iterations=5, restarts=1)}, measures=[])
    controls = Controls(positive=False, negative=False)
    return replace(plan, site=replace(plan.site, controls=controls, save_updates=True))


@functools.cache
def honest() -> dict[str, Tensor]:
    """The update of the small audit's only batch, which is then damaged."""
    site = _plan().site
    sent = site.scenarios[0].release(site.objective, site.batches[0], torch.Generator().manual_seed(0))
    return dict(sent.tensors)


def _tensors(draw: random.Random) -> dict[str, Tensor]:
    """The honest update, in many cases with some change of names, numbers, formats or shapes."""
    tensors = {name: tensor.clone() for name, tensor in honest().items()}
    for _ in range(draw.choice([0, 0, 0, 0, 1, 1, 2])):
        name = draw.choice(list(tensors))
        tensor = tensors[name]
        match draw.randrange(10):
            case 0:
                tensors[name] = tensor.to(draw.choice(DTYPES))
            case 1:
                tensor.view(-1)[: draw.randint(1, 3)].copy_(torch.tensor(draw.choice(NUMBERS)))
            case 2:
                tensors[name] = tensor.double() * draw.choice(NUMBERS)
            case 3:
                tensors[name] = tensor.t().contiguous() if tensor.dim() == 2 else tensor.reshape(-1)[:0]
            case 4:
                tensors[name] = tensor.reshape((1,) * draw.choice([1, 63, 70]) + tensor.shape)
            case 5 if len(tensors) > 1:
                del tensors[name]
            case 6:
                tensors[draw.choice(NAMES)] = tensors.pop(name)
            case 7:
                tensors[draw.choice(NAMES)] = tensor.clone()
            case 8:
                tensors |= {f"extra{place}": torch.zeros(()) for place in range(draw.choice([1, 100, 2000]))}
            case _:
                tensors |= {f"module.{key}": value.clone() for key, value in tensors.items()}
    return tensors


def _safetensors(draw: random.Random, tensors: Mapping[str, Tensor]) -> bytes:
    names = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.float64: "F64"}
    names |= {torch.int8: "I8", torch.int64: "I64", torch.bool: "BOOL", torch.complex64: "C64"}
    header: dict[str, Any] = {}
    data = b""
    for name, tensor in tensors.items():
        held = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        place = [len(data), len(data) + len(held)]
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": place}
        data += held
    header["__metadata__"] = {"gradleak": _statement(draw)}
    if draw.random() < 0.3:
        table: Any = header
        while isinstance(table, dict) and table and draw.random() < 0.8:
            key = draw.choice(list(table))
            if not isinstance(table[key], dict) or draw.random() < 0.3:
                table[key] = _value(draw)
            table = table[key]
    text = json.dumps(header)
    if draw.random() < 0.1:
        text = text.replace(
            "{", '{"0.weight": 1, ' if draw.random() < 0.5 else '{"a": ' + "[" * draw.choice([3, 10**4]), 1
        )
    size = len(text.encode()) if draw.random() < 0.95 else draw.choice([0, 2**24, 2**40, 2**63])
    return struct.pack("<Q", size) + text.encode() + data


def _statement(draw: random.Random) -> str:
    """Words of a client beside its numbers."""
    stated: dict[str, Any] = {"kind": draw.choice(["gradient", "gradient", "delta"]), "provenance": {}}
    for key in draw.sample(KEYS, draw.randint(0, 4)):
        stated["provenance"][key] = _value(draw)
    for key in draw.sample(["kind", "provenance", "order"], draw.choice([0, 0, 0, 1])):
        stated[key] = _value(draw)
    return json.dumps(stated)


def _value(draw: random.Random) -> Any:
    deep: Any = 1
    for _ in range(draw.choice([3, 90, 900])):
        deep = [deep] if draw.random() < 0.5 else {"a": deep}
    plain: list[Any] = [
        None,
        True,
        5,
        -1,
        2**62,
        10**30,
        1.5,
        math.nan,
        "",
        "delta",
        [],
        {},
        [1, -1],
        [2**40, 2**40],
        ["w"] * 300,
    ]
    return draw.choice([*plain, deep, draw.choice(NAMES), "y" * 2**21])


def _npz(draw: random.Random, tensors: Mapping[str, Tensor]) -> bytes:
    return _zipped(draw, {f"{name}.npy": _npy(draw, tensor) for name, tensor in tensors.items()})


def _npy_list(draw: random.Random, tensors: Mapping[str, Tensor]) -> bytes:
    return _npz(draw, {f"arr_{place}": tensor for place, tensor in enumerate(tensors.values())})


def _npy(draw: random.Random, tensor: Tensor) -> bytes:
    buffer = io.BytesIO()
    tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    np.save(buffer, tensor.reshape(tensor.shape[-32:]).numpy())
    content = buffer.getvalue()
    if draw.random() < 0.05:
        size = struct.unpack("<H", content[8:10])[0]
        shape = draw.choice([(10**12,), (-1,), (2**62, 8), (), (0, 10**18), (True,), "x", (1,) * 400])
        kind = draw.choice(["<f4", ">f8", "|O", "<U9", "|V0", "<f3", "<M8[s]", [("a", "<f4")], "('<f4', (9,))", "<c8"])
        described = {"descr": kind, "fortran_order": draw.choice([True, False, 3]), "shape": shape}
        text = draw.choice([repr(described), "(" * 3000, "1L", "{'shape': 1if 1 else 2}", "__import__('os').abort()"])
        content = content[:8] + struct.pack("<H", len(text)) + text.encode() + content[10 + size :]
    return content


def _torch(draw: random.Random, tensors: Mapping[str, Tensor]) -> bytes:
    sent: dict[Any, Any] = dict(tensors)
    if draw.random() < 0.15:
        odd: list[Any] = [5, None, "x", {"w": torch.ones(1)}, torch.eye(2).to_sparse(), torch.zeros(1).expand(10**9)]
        odd += [torch.ones(2, device="meta"), nn.Parameter(torch.ones(1)), torch.ones(2).conj(), [torch.ones(1)] * 3]
        sent[draw.choice(["w", 0, "0.weight"])] = draw.choice(odd)
    buffer = io.BytesIO()
    torch.save(list(sent.values()) if draw.random() < 0.2 else sent, buffer, pickle_protocol=draw.choice([2, 2, 4, 5]))
    with zipfile.ZipFile(buffer) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    if draw.random() < 0.3:
        name = next(name for name in entries if name.endswith("data.pkl"))
        entries[name] = _scratched(draw, entries[name])
    return _zipped(draw, entries)


def _zipped(draw: random.Random, entries: Mapping[str, bytes]) -> bytes:
    """An archive of these entries, now and then with one too few, too many, doubled, or with sizes that lie."""
    listed = [(name.replace("\0", "")[-(2**15) :] or "_", content) for name, content in entries.items()]
    if draw.random() < 0.15:
        name, content = draw.choice(listed)
        nested = io.BytesIO()
        with zipfile.ZipFile(nested, "w") as archive:
            archive.writestr("w.npy", content)
        extra = [
            (name, content),
            (name, b""),
            ("other.npy", nested.getvalue()),
            (f"{name}.npy", content),
            ("a/data.pkl", content),
        ]
        listed.append(draw.choice(extra))
        listed = listed if draw.random() < 0.7 else draw.sample(listed, len(listed) - 1)
    methods = [zipfile.ZIP_STORED] * 4 + [zipfile.ZIP_DEFLATED] * 4 + [zipfile.ZIP_LZMA]
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that stand twice
        with zipfile.ZipFile(buffer, "w", draw.choice(methods)) as archive:
            for name, content in listed:
                archive.writestr(zipfile.ZipInfo(name), content, archive.compression)
    archived = buffer.getvalue()
    if draw.random() < 0.1:
        size = struct.pack("<I", len(draw.choice(listed)[1]))
        archived = archived.replace(size, struct.pack("<I", draw.choice([0, 10**8, 2**31, 2**32 - 1])))
    return archived


def _scratched(draw: random.Random, content: bytes) -> bytes:
    """The bytes with a few changes: flipped, overwritten, cut out, doubled or cut off."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        if not changed:
            break
        place, other = draw.randrange(len(changed)), draw.randrange(len(changed))
        piece = slice(place, place + draw.choice([1, 1, 2, 8, 60]))
        match draw.randrange(12):
            case 0 | 1 | 2:
                changed[place] ^= 1 << draw.randrange(8)
            case 3 | 4:
                changed[place] = draw.choice([0, 255, draw.randrange(256)])
            case 5 | 6:
                del changed[piece]
            case 7 | 8:
                changed[place:place] = changed[other : other + 8]
            case 9 | 10:
                changed[piece] = bytes([255]) * (piece.stop - place)
            case _:
                del changed[place:]
    return bytes(changed)


FORMATS = ((".safetensors", _safetensors), (".npz", _npz), (".npz", _npy_list), (".pt", _torch), (".pth", _torch))
FUZZER = Fuzzer("updates", case)
