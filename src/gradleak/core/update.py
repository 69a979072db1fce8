"""Update as the server sees it: named tensors, saved without pickles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from gradleak.core.objective import Objective
from gradleak.core.precision import Precision, precision_of
from gradleak.core.tensor_names import first_of, is_list, read_list, read_names
from gradleak.core.torch_file import MOST_AXES
from gradleak.core.update_files import METADATA_KEY, MOST_TENSORS, read_tensors
from gradleak.results import InconsistentUpdateError, InputError
from gradleak.results.errors import shown
from gradleak.results.files import write_file
from gradleak.results.score import jsonable

MAX_BYTES = 8 * 2**30
MOST_NAME_LETTERS = 1_000
MOST_PROVENANCE_LETTERS = 2**20
# Of what `align` notes.
MOST_NOTES = 1_000
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class UpdateKind(StrEnum):
    """Kind of the tensors: a gradient, the difference initial minus final parameters, or the final parameters whole."""

    GRADIENT = "gradient"
    DELTA = "delta"
    WEIGHTS = "weights"

    @property
    def read_as(self) -> UpdateKind:
        """Kind after `Update.align`, which takes whole weights from the parameters that were sent: a delta."""
        return UpdateKind.DELTA if self is UpdateKind.WEIGHTS else self


@dataclass(frozen=True, kw_only=True, eq=False)
class Update:
    """Named tensors that a client sent, their kind, and where they come from; holds no truth.

    The tensors are cut from the graph that computed them, which would lead back to the data.

    Attributes:
        tensors: by parameter name; dense, sparse gradients are made so.
        kind: "gradient", or "delta" = initial minus final parameters, so that both point along the gradient, or "weights",
            the final parameters themselves, which `align` takes from the model's; the plain text is taken too.
        provenance: JSON-ready facts on the making (protocol, defenses, notes), never data of examples. In a file it is
            what the client says: kept, shown to whoever asks, and read by nothing that leads to a score or verdict.
        alignment: what `align` did to names; never read from a file.

    Raises:
        InputError: for anything but named plain tensors and bounded facts: at most 50,000 tensors, names of at most 1,000
            letters that can be printed, and a megabyte of provenance.
    """

    tensors: Mapping[str, Tensor]
    kind: UpdateKind = UpdateKind.GRADIENT
    provenance: Mapping[str, Any] = field(default_factory=dict)
    alignment: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check names, tensors and facts, and cut the tensors from their graph."""
        if not isinstance(self.tensors, Mapping):
            raise InputError(
                f"Update: expected a dict of tensors by name, got {type(self.tensors).__name__}; write Update(tensors="
                "dict(zip(names, tensors))), or without names {str(place): torch.as_tensor(array) for place, array in "
                "enumerate(arrays)}, which is read in the order of the model's parameters"
            )
        if not 0 < len(self.tensors) <= MOST_TENSORS:
            raise InputError(
                f"Update: expected at least one tensor, and at most {MOST_TENSORS}, got {len(self.tensors) or 'none'}"
            )
        if self.kind not in tuple(UpdateKind):
            raise InputError(f"Update: expected kind 'gradient', 'delta' or 'weights', got {shown(self.kind)}")
        object.__setattr__(self, "kind", UpdateKind(self.kind))
        object.__setattr__(self, "tensors", {name: _plain(name, tensor) for name, tensor in self.tensors.items()})
        object.__setattr__(self, "provenance", _facts(self.provenance))

    def __repr__(self) -> str:
        """Number of tensors and of their entries, and their kind; not the numbers."""
        numbers = sum(tensor.numel() for tensor in self.tensors.values())
        tensors = f"{len(self.tensors)} tensor{'s' if len(self.tensors) != 1 else ''}"
        return (
            f"Update({tensors}, {numbers} numbers, {str(self.dtype).removeprefix('torch.')}, kind={self.kind.value!r})"
        )

    @property
    def dtype(self) -> torch.dtype:
        """The finest floating point format among the tensors, whichever comes first; that of the first if none is one."""
        dtypes = [tensor.dtype for tensor in self.tensors.values()]
        return min((one for one in dtypes if one in FLOATS), key=lambda one: torch.finfo(one).eps, default=dtypes[0])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a safetensors file whose header holds kind and provenance as JSON.

        The file appears under its name only when it is whole, readable for its owner alone.

        Raises:
            WriteError: if it cannot be written.
            InputError: if the name does not end in `.safetensors`, the folder is missing, or the provenance holds
                something else than JSON.
        """
        file = Path(path)
        if file.suffix != ".safetensors":
            raise InputError(f"Update.save: expected a name ending in .safetensors, got {file.name}")
        if not file.parent.is_dir():
            raise InputError(f"{file}: expected an existing folder, got none; create {file.parent} first")
        facts = {"kind": self.kind.value, "provenance": dict(self.provenance), "order": list(self.tensors)}
        header = json.dumps(facts, allow_nan=False)
        # Every tensor gets memory of its own: safetensors refuses tensors that share it (tied weights, views).
        tensors = {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.tensors.items()
        }
        # save_file writes through a file of a random name, which a kill would leave behind.
        return write_file(file, save(tensors, metadata={METADATA_KEY: header}))

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
            kind: "gradient" or "delta", where the file does not say so itself (default gradient), or "weights" for whole
                parameters, which has to be said here: no file changes its own numbers.
            sign: -1 turns a difference final minus initial into initial minus final.
            max_bytes: refuse files whose tensors would need more memory than this, before they are read.

        Raises:
            InputError: for a missing, oversized, damaged or unsafe file; the message says how to convert it.
        """
        file = Path(path)
        if sign not in (1, -1):
            raise InputError(f"Update.load: expected sign 1 or -1, got {shown(sign)}")
        tensors, header = read_tensors(file, max_bytes)
        stated = header.get("kind")
        for source, value in (("the argument", kind), ("the file", stated)):
            if value is not None and value not in tuple(UpdateKind):
                raise InputError(
                    f"{file}: expected kind 'gradient', 'delta' or 'weights', got {shown(value)} from {source}"
                )
        if stated == UpdateKind.WEIGHTS and kind is None:
            raise InputError(f"{file}: the file says that it holds whole weights; if it does, say kind='weights'")
        if kind is not None and stated is not None and kind != stated:
            raise InputError(
                f"{file}: expected kind {kind!r} (the argument), got {stated!r} from the file; leave the argument out if "
                f"the file is right, or save it again with gradleak.Update(tensors=..., kind={kind!r})"
            )
        provenance = header.get("provenance", {"file": file.name})
        if sign == -1 and kind == UpdateKind.WEIGHTS:
            raise InputError(f"{file}: expected sign 1 with kind='weights', which is no difference, got -1")
        if sign == -1:
            fixed = next((name for name, tensor in tensors.items() if tensor.dtype not in FLOATS), None)
            if fixed is not None:
                raise InputError(
                    f"{file}: expected floating point numbers to turn around, got {tensors[fixed].dtype} in {shown(fixed)}"
                )
            tensors = {name: -tensor for name, tensor in tensors.items()}
            provenance = {**provenance, "sign": -1}
        try:
            return cls(tensors=tensors, kind=UpdateKind(kind or stated or UpdateKind.GRADIENT), provenance=provenance)
        except InputError as error:
            raise InputError(f"{file}: {error}") from error

    def align(self, objective: Objective) -> Update:
        """This update with exactly the names, order and shapes of `objective.params`, whole weights as their change.

        Parts of names that wrappers and peft adapters add are dropped, as is a front that all names share; further names of
        tied weights and entries for buffers or frozen parameters are left out; and a list without names is taken in the one
        order that its shapes allow: of the parameters, or of `state_dict()`. What was done is listed in `alignment`.
        Values are not compared, so a square weight that was transposed, or two parameters of one shape that changed places,
        pass here: the consistency gate sees them.

        Raises:
            InconsistentUpdateError: with a shape table, if tensors are missing, left over or of another shape, or if
                two tensors claim one parameter.
            InputError: naming the tensor, if its numbers are not floating point, NaN, infinite, or too large for the format
                in which the model computes.
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
            shares = ", ".join(first_of(f"{share:.1%} of {name}" for name, share in broken.items()))
            raise InputError(
                f"update: {shares} is NaN or infinite; expected finite numbers. "
                "Check the client's loss scale and mixed precision"
            )
        for name, parameter in objective.params.items():
            most = torch.finfo(parameter.dtype).max
            if torch.finfo(tensors[name].dtype).max > most and bool((tensors[name].abs() > most).any()):
                raise InputError(
                    f"update: expected numbers that {parameter.dtype} holds, in which the model computes, got larger ones in "
                    f"{name}; undo the client's loss scale, or audit the model in the update's format (model.double())"
                )
        ordered = {name: tensors[name] for name in objective.params}
        if self.kind is UpdateKind.WEIGHTS:
            ordered = {name: objective.params[name].detach() - tensor for name, tensor in ordered.items()}
            notes.append("whole weights were taken from the parameters of the model: initial minus final")
        if len(notes) > MOST_NOTES:
            notes[MOST_NOTES:] = [f"and {len(notes) - MOST_NOTES} more"]
        return replace(self, tensors=ordered, kind=self.kind.read_as, alignment=(*self.alignment, *notes))

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
        sent: Mapping[str, Tensor] = self.tensors
        if is_list(sent, objective):
            sent, order = read_list(sent, objective)
            notes.append(f"a list without names was taken in the order of {order}")
        names = read_names(sent, objective)
        tensors: dict[str, Tensor] = {}
        came_as: dict[str, str] = {}
        for name, tensor in sent.items():
            plain = names[name]
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


def _plain(name: Any, tensor: Any) -> Tensor:
    """The dense numbers of a tensor, cut from its graph; refused where it has none, or a name that no line can hold."""
    if not isinstance(name, str) or len(name) > MOST_NAME_LETTERS or not name.isprintable():
        length = f" of {len(name)} letters" if isinstance(name, str) else f" ({type(name).__name__})"
        raise InputError(
            f"Update: expected names of at most {MOST_NAME_LETTERS} letters that can be printed, got {shown(name)}{length}; "
            "rename the tensor, as text"
        )
    if not isinstance(tensor, Tensor):
        hint = "torch.zeros_like(p) for p.grad where nothing came" if tensor is None else "torch.as_tensor(...)"
        raise InputError(f"Update: expected torch tensors, got {type(tensor).__name__} for {name}; write {hint}")
    dense: Tensor = tensor.detach()
    size = dense.numel() * dense.element_size()
    if dense.is_sparse and size <= MAX_BYTES and dense.dim() <= MOST_AXES:
        dense = dense.to_dense()  # of nn.Embedding(sparse=True)
    plain = type(dense) is Tensor and dense.layout is torch.strided and not (dense.is_quantized or dense.is_meta)
    if not plain or dense.is_nested or dense.dim() > MOST_AXES:
        raise InputError(
            f"Update: expected plain dense tensors of at most {MOST_AXES} axes, got {type(dense).__name__} with "
            f"{dense.layout} on {dense.device} for {name}; write tensor.to_dense() or tensor.dequantize()"
        )
    if size > MAX_BYTES and size > dense.untyped_storage().nbytes():
        raise InputError(
            f"Update: expected tensors with memory of their own, got {size} bytes in a smaller one for {name}"
        )
    return dense.clone() if dense.is_inference() else dense


def _facts(provenance: Any) -> dict[str, Any]:
    """The provenance as JSON, or one line on what is wrong with it."""
    if not isinstance(provenance, Mapping):
        raise InputError(f"Update.provenance: expected a dict of facts, got {type(provenance).__name__}")
    if not provenance:
        return {}
    try:
        facts: dict[str, Any] = jsonable(provenance)
        letters = len(json.dumps(facts, allow_nan=False))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"Update.provenance: expected facts as JSON holds them, got others ({error})") from error
    if letters > MOST_PROVENANCE_LETTERS:
        raise InputError(f"Update.provenance: expected at most {MOST_PROVENANCE_LETTERS} letters, got {letters}")
    return facts


def precision_by(tensors: Mapping[str, Tensor]) -> dict[str, Precision]:
    """The precision of every tensor by name."""
    return {name: precision_of(tensor) for name, tensor in tensors.items()}


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
        "unknown tensors): " + "; ".join(first_of(rows)) + ". Check that model and update belong together"
    )
