"""Update as the server sees it: named tensors, saved without pickles."""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradleak.core.module_copy import bare_name, first_line, strip_prefix
from gradleak.core.objective import Objective
from gradleak.core.precision import Precision, precision_of
from gradleak.results import InconsistentUpdateError, InputError
from gradleak.results.score import jsonable

METADATA_KEY = "gradleak"
MAX_BYTES = 8 * 2**30
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
HOW_TO_CONVERT = (
    "pickles are never loaded, since they can run code. Convert where the file was made: "
    "safetensors.torch.save_file(dict_of_tensors, 'update.safetensors') or numpy.savez('update.npz', **arrays)"
)


class UpdateKind(StrEnum):
    """Kind of the tensors: a gradient, or the difference initial minus final parameters."""

    GRADIENT = "gradient"
    DELTA = "delta"


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """Named tensors that a client sent, their kind, and where they come from; holds no truth.

    The tensors are cut from the graph that computed them, which would lead back to the data.

    Attributes:
        tensors: by parameter name.
        kind: "gradient", or "delta" = initial minus final parameters, so that both point along the gradient;
            the plain text is taken too.
        provenance: JSON-ready facts on the making (protocol, defenses, notes), never data of examples.
    """

    tensors: Mapping[str, Tensor]
    kind: UpdateKind = UpdateKind.GRADIENT
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an update without tensors, and cut the tensors from their graph."""
        if not self.tensors:
            raise InputError("Update: expected at least one tensor, got none")
        for name, tensor in self.tensors.items():
            if not isinstance(tensor, Tensor):
                raise InputError(f"Update: expected torch tensors, got {type(tensor).__name__} for {name}")
        if self.kind not in tuple(UpdateKind):
            raise InputError(f"Update: expected kind 'gradient' or 'delta', got {self.kind!r}")
        object.__setattr__(self, "kind", UpdateKind(self.kind))
        object.__setattr__(self, "tensors", {name: tensor.detach() for name, tensor in self.tensors.items()})

    def __repr__(self) -> str:
        """Number of tensors and of their entries, and their kind; not the numbers."""
        numbers = sum(tensor.numel() for tensor in self.tensors.values())
        tensors = f"{len(self.tensors)} tensor{'s' if len(self.tensors) != 1 else ''}"
        return (
            f"Update({tensors}, {numbers} numbers, {str(self.dtype).removeprefix('torch.')}, kind={self.kind.value!r})"
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first tensor."""
        return next(iter(self.tensors.values())).dtype

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a safetensors file whose header holds kind and provenance as JSON.

        The file appears under its name only when it is whole.

        Raises:
            InputError: if the name does not end in `.safetensors`, the folder is missing, or the provenance holds
                something else than JSON.
        """
        file = Path(path)
        if file.suffix != ".safetensors":
            raise InputError(f"Update.save: expected a name ending in .safetensors, got {file.name}")
        if not file.parent.is_dir():
            raise InputError(f"{file}: expected an existing folder, got none; create {file.parent} first")
        facts = {"kind": self.kind.value, "provenance": jsonable(dict(self.provenance)), "order": list(self.tensors)}
        header = json.dumps(facts, allow_nan=False)
        # Every tensor gets memory of its own: safetensors refuses tensors that share it (tied weights, views).
        tensors = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.tensors.items()
        }
        partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
        try:
            # save_file writes through a file of a random name, which a kill would leave behind.
            partial.write_bytes(save(tensors, metadata={METADATA_KEY: header}))
            partial.replace(file)
        finally:
            partial.unlink(missing_ok=True)
        return file

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        kind: UpdateKind | str | None = None,
        sign: int = 1,
        max_bytes: int = MAX_BYTES,
    ) -> Update:
        """Read an update from safetensors, npz, or a torch file of plain tensors; never unpickles.

        Args:
            path: the file.
            kind: "gradient" or "delta", where the file does not say so itself (default gradient).
            sign: -1 turns a difference final minus initial into initial minus final.
            max_bytes: refuse files whose tensors would need more memory than this, before they are read.

        Raises:
            InputError: for a missing, oversized, damaged or unsafe file; the message says how to convert it.
        """
        file = Path(path)
        if not file.is_file():
            raise InputError(f"{file}: expected an update file, got no such file")
        if sign not in (1, -1):
            raise InputError(f"Update.load: expected sign 1 or -1, got {sign}")
        if file.stat().st_size > max_bytes:
            raise InputError(f"{file}: {file.stat().st_size} bytes, more than the {max_bytes} allowed (max_bytes)")
        header: dict[str, Any] = {}
        if file.suffix == ".safetensors":
            tensors, header = _load_safetensors(file)
        elif file.suffix == ".npz":
            tensors = _load_npz(file, max_bytes)
        elif file.suffix in (".pt", ".pth"):
            tensors = _load_torch(file, max_bytes)
        else:
            raise InputError(f"{file}: expected .safetensors, .npz, .pt or .pth, got {file.suffix!r}; {HOW_TO_CONVERT}")
        if not tensors:
            raise InputError(f"{file}: expected at least one tensor, got none")
        _check_tensors(file, tensors, max_bytes)
        stated = header.get("kind")
        for source, value in (("the argument", kind), ("the file", stated)):
            if value is not None and value not in tuple(UpdateKind):
                raise InputError(f"{file}: expected kind 'gradient' or 'delta', got {value!r} from {source}")
        if kind is not None and stated is not None and kind != stated:
            raise InputError(f"{file}: expected kind {kind!r} (the argument), got {stated!r} from the file; drop one")
        provenance = header.get("provenance", {"file": file.name})
        return cls(
            tensors={name: -tensor if sign == -1 else tensor for name, tensor in tensors.items()},
            kind=UpdateKind(kind or stated or UpdateKind.GRADIENT),
            provenance={**provenance, "sign": -1} if sign == -1 else provenance,
        )

    def align(self, objective: Objective) -> Update:
        """This update with exactly the names, order and shapes of `objective.params`.

        Wrapper prefixes are dropped, further names of tied weights and entries for buffers or frozen parameters are
        left out, and a positional list of the right shapes is taken in order. What was done is listed under
        `provenance["alignment"]`. Values are not looked at, so a square weight that was transposed, or two parameters
        of one shape that changed places, pass here: the consistency gate sees them.

        Raises:
            InconsistentUpdateError: with a shape table, if tensors are missing, left over or of another shape, or if
                two tensors claim one parameter.
            InputError: naming the tensor, if its numbers are not floating point, NaN or infinite.
        """
        tensors, notes = self._named(objective)
        missing = [name for name in objective.params if name not in tensors]
        extra = [name for name in tensors if name not in objective.params]
        wrong = [
            name
            for name, parameter in objective.params.items()
            if name in tensors and tensors[name].shape != parameter.shape
        ]
        if missing or extra or wrong:
            raise InconsistentUpdateError(_shape_table(objective, tensors, missing, extra, wrong))
        for name, tensor in tensors.items():
            if tensor.dtype not in FLOATS:
                raise InputError(
                    f"update: expected floating point numbers, got {tensor.dtype} in {name}; undo the client's "
                    "quantization or compression first"
                )
        broken = {name: part.non_finite for name, part in precision_by(tensors).items() if part.non_finite > 0}
        if broken:
            shares = ", ".join(f"{share:.1%} of {name}" for name, share in broken.items())
            raise InputError(
                f"update: {shares} is NaN or infinite; expected finite numbers. "
                "Check the client's loss scale and mixed precision"
            )
        ordered = {name: tensors[name] for name in objective.params}
        provenance = {**self.provenance, "alignment": notes} if notes else dict(self.provenance)
        return replace(self, tensors=ordered, provenance=provenance)

    def zero_tensors(self) -> list[str]:
        """The names of tensors that are zero everywhere."""
        return [name for name, tensor in self.tensors.items() if not bool(tensor.any())]

    def precision(self) -> dict[str, Precision]:
        """Effect of the number format of each tensor on it: the shares of zero, subnormal and non-finite entries.

        An attack on a half precision update computes in a wider format, but what the client's format flushed is gone.
        """
        return precision_by(self.tensors)

    def _named(self, objective: Objective) -> tuple[dict[str, Tensor], list[str]]:
        notes: list[str] = []
        places = [name.removeprefix("arr_") for name in self.tensors]
        if all(place.isascii() and place.isdigit() for place in places) and not set(self.tensors) & set(
            objective.params
        ):
            # By number: archives that sort by name put "10" before "2".
            listed = [
                tensor for _, tensor in sorted(zip(map(int, places), self.tensors.values(), strict=True), key=_place)
            ]
            shapes = [tuple(tensor.shape) for tensor in listed]
            if shapes != [tuple(tensor.shape) for tensor in objective.params.values()]:
                raise InconsistentUpdateError(_position_table(objective, shapes))
            notes.append("a list without names was taken in the order of the model's parameters")
            return dict(zip(objective.params, listed, strict=True)), notes
        readings = _readings(objective)
        tensors: dict[str, Tensor] = {}
        came_as: dict[str, str] = {}
        for name, tensor in self.tensors.items():
            plain = _read_name(name, readings, objective)
            if plain != name:
                notes.append(f"{name} read as {plain}")
            canonical = objective.tied.get(plain, plain)
            if canonical in objective.frozen or canonical in objective.buffers:
                notes.append(f"{name} left out: it is not a trainable parameter")
                continue
            if canonical in tensors:
                if not torch.equal(tensors[canonical], tensor):
                    raise InconsistentUpdateError(
                        f"update: {came_as[canonical]} and {name} are both {canonical}, but the two tensors differ; "
                        "expected one tensor, or two equal ones. Save one entry a parameter (for a tied weight, the "
                        "sum over its uses)"
                    )
                notes.append(f"{name} left out: another name of {canonical}")
                continue
            tensors[canonical], came_as[canonical] = tensor, name
        return tensors, notes


def precision_by(tensors: Mapping[str, Tensor]) -> dict[str, Precision]:
    """The precision of every tensor by name."""
    return {name: precision_of(tensor) for name, tensor in tensors.items()}


def _place(entry: tuple[int, Tensor]) -> int:
    return entry[0]


def _known(objective: Objective) -> set[str]:
    return {*objective.params, *objective.frozen, *objective.buffers, *objective.tied}


def _readings(objective: Objective) -> dict[str, set[str]]:
    """For every name without any wrapper part, the names of the model that read so."""
    readings: dict[str, set[str]] = {}
    for name in _known(objective):
        readings.setdefault(bare_name(name), set()).add(name)
    return readings


def _read_name(name: str, readings: Mapping[str, set[str]], objective: Objective) -> str:
    """The name of the model that `name` stands for once wrapper prefixes are dropped; itself if there is none.

    Raises:
        InconsistentUpdateError: if there are several.
    """
    known = _known(objective)
    for candidate in (name, strip_prefix(name)):
        if candidate in known:
            return candidate
    found = readings.get(bare_name(name), set())
    if len(found) > 1:
        raise InconsistentUpdateError(
            f"update: {name} can be {' or '.join(sorted(found))}; expected one reading. Rename it to the one it is"
        )
    return next(iter(found), name)


def _shape_table(
    objective: Objective, tensors: Mapping[str, Tensor], missing: list[str], extra: list[str], wrong: list[str]
) -> str:
    rows = [f"{name}: expected {tuple(objective.params[name].shape)}, got nothing" for name in missing]
    for name in wrong:
        expected, got = tuple(objective.params[name].shape), tuple(tensors[name].shape)
        hint = " (transposed?)" if expected == got[::-1] else ""
        rows.append(f"{name}: expected {expected}, got {got}{hint}")
    rows += [f"{name}: not a parameter of this model, got {tuple(tensors[name].shape)}" for name in extra]
    return (
        f"the update does not fit the model ({len(missing)} missing, {len(wrong)} of another shape, {len(extra)} "
        "unknown tensors): " + "; ".join(rows) + ". Check that model and update belong together"
    )


def _position_table(objective: Objective, shapes: list[tuple[int, ...]]) -> str:
    expected = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in objective.params.items())
    return (
        f"a list of {len(shapes)} tensors without names does not fit the model's {len(objective.params)} parameters "
        f"in order: expected {expected}; got {', '.join(map(str, shapes))}. Save the tensors by name"
    )


def _load_safetensors(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(file, framework="pt") as handle:
            header = _header(file, (handle.metadata() or {}).get(METADATA_KEY, "{}"))
            names = list(handle.keys())
            order = dict.fromkeys([*(name for name in header.get("order", ()) if name in names), *names])
            # Copies: the tensors of safetensors are a view of the file, which may change or shrink on disk.
            return {name: handle.get_tensor(name).clone() for name in order}, header
    except InputError:
        raise
    except (SafetensorError, OSError, *_UNREADABLE) as error:
        raise InputError(f"{file}: not a readable safetensors file ({first_line(error)}); write it again") from error


def _header(file: Path, text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged gradleak header ({first_line(error)[:80]}); write it again") from error
    form = {"kind": str, "provenance": dict, "order": list}
    if not isinstance(header, dict) or any(key in header and not isinstance(header[key], form[key]) for key in form):
        raise InputError(f"{file}: expected kind, provenance and order in the gradleak header, got another form")
    if not all(isinstance(name, str) for name in header.get("order", ())):
        raise InputError(f"{file}: expected names of tensors in the gradleak header, got something else")
    return header


def _check_tensors(file: Path, tensors: Mapping[str, Tensor], max_bytes: int) -> None:
    """Refuse tensors that are not plain numbers in memory, or that would unfold to more than `max_bytes`."""
    for name, tensor in tensors.items():
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
            raise InputError(
                f"{file}: expected plain dense tensors, got {type(tensor).__name__} with {tensor.layout} on "
                f"{tensor.device} for {name}; save tensor.to_dense()"
            )
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if size > max_bytes:
        raise InputError(f"{file}: {size} bytes in memory, more than the {max_bytes} allowed (max_bytes)")


# What the readers of damaged or foreign files raise besides OSError.
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RuntimeError,  # NotImplementedError and RecursionError too
    EOFError,
    MemoryError,
    OverflowError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)


def _check_archive(file: Path, max_bytes: int) -> None:
    """Refuse a zip whose contents would unpack to more than `max_bytes`."""
    if not zipfile.is_zipfile(file):
        raise InputError(f"{file}: expected a zip archive inside {file.suffix}, got something else; {HOW_TO_CONVERT}")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (OSError, *_UNREADABLE) as error:
        raise InputError(f"{file}: damaged zip archive ({first_line(error)}); write it again") from error
    if size > max_bytes:
        raise InputError(f"{file}: unpacks to {size} bytes, more than the {max_bytes} allowed (max_bytes)")


def _load_npz(file: Path, max_bytes: int) -> dict[str, Tensor]:
    _check_archive(file, max_bytes)
    try:
        _check_array_headers(file)
        with np.load(file, allow_pickle=False) as arrays:
            return {name: torch.from_numpy(_native(arrays[name])) for name in arrays.files}
    except InputError:
        raise
    except (OSError, *_UNREADABLE) as error:
        reason = first_line(error)[:160]
        raise InputError(f"{file}: not an npz of numeric arrays ({reason}); {HOW_TO_CONVERT}") from error


def _check_array_headers(file: Path) -> None:
    """Refuse an array whose header promises more bytes than the archive holds: numpy would allocate them first."""
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(stream)
                held = entry.file_size - stream.tell()
            if dtype.hasobject:
                raise InputError(
                    f"{file}: expected numeric arrays, got Python objects in {entry.filename}; {HOW_TO_CONVERT}"
                )
            if math.prod(shape) * dtype.itemsize > held:
                raise InputError(
                    f"{file}: {entry.filename} promises shape {shape}, more than its {held} bytes hold; write it again"
                )


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in the byte order of this machine and with memory of its own."""
    return np.array(array, dtype=array.dtype.newbyteorder("="))


def _load_torch(file: Path, max_bytes: int) -> dict[str, Tensor]:
    _check_archive(file, max_bytes)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # weights_only refuses in many ways; all of them mean: not plain tensors
        reason = first_line(error)[:160]
        raise InputError(f"{file}: not a torch file of plain tensors ({reason}); {HOW_TO_CONVERT}") from error
    if isinstance(content, list | tuple):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        raise InputError(f"{file}: expected a dict or list of tensors, got {type(content).__name__}; {HOW_TO_CONVERT}")
    tensors: dict[str, Tensor] = {}
    for key, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{file}: expected tensors only, got {type(tensor).__name__} for {key!r}; {HOW_TO_CONVERT}"
            )
        if str(key) in tensors:
            raise InputError(f"{file}: expected one entry a name, got two that read {key!r}; rename one")
        tensors[str(key)] = tensor.detach()
    return tensors
