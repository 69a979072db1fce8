"""Private data of batches, and the search for copies of them in tensors, arrays and lists."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.object_walk import CHUNK, FEWEST_NUMBERS, Memory, memory_of, tensors_in

Floats = NDArray[np.float64]

# Neighbors that have to agree to the last bit.
_RUN = 8
# Values from which an order-free or rescaled copy can be told from chance: of exact ones, and of rounded ones.
_FEWEST_VALUES, _FEWEST_ROUNDED = 8, 16
# A match that chance brings more often than once in 2 to that many tries says nothing.
_BITS, _LABEL_BITS = 30.0, 14.0
_MOST_RUNS = 2**18
# Numbers of which the moments are taken at once: what a processor keeps at hand.
_CACHED = 2**16
_MOST_COLUMNS = 64
_MOST_PAIRS = 100_000
_FACTORS = np.random.default_rng(0).integers(1, 2**63, _RUN, dtype=np.int64) | 1


class PrivateData:
    """The inputs, labels and sensitive variables of batches, to be searched for in other objects.

    Found are, whatever the container (tensor, array or field of one, list, nested list, column of rows, bytes behind any
    header, storage):

    - memory that is shared with a batch, of any part of it;
    - copies of runs of eight neighboring values, or of whole examples where they are shorter, in the number format of the
      copy: crops, rows, whole batches;
    - copies of whole examples, of their channels, and (for eight examples or more) of single features over the batch, in any
      order of their values and after any a x + b with one a and b for each of these parts: batches that are permuted,
      flipped, transposed, normalized by channel or by feature, rounded to 8 bits;
    - the labels of a batch of at least eight, or its sensitive variable, in their order, alone or among others, and as
      one-hot rows.

    Values that chance or habit brings as well are no match: constant or evenly spaced ones, and those of few bits (an
    example of four zeros and ones). Not found are other functions of the data (hidden features, gradients), crops that are
    rescaled as well, and values that are scattered over single objects.
    """

    def __init__(self, batches: Sequence[Batch], *, labels: bool = True) -> None:
        """Keep the data, without a copy.

        Args:
            batches: what is private.
            labels: whether labels are searched for; not where they are disclosed.
        """
        self._batches = batches
        self._told = [("labels", batch.targets) for batch in batches if labels]
        self._told += [("sensitive variable", batch.sensitive) for batch in batches if batch.sensitive is not None]
        self._runs: dict[torch.dtype, _Runs] = {}

    def among(self, value: Any, *, exactly: bool = False, alike: bool = False) -> str | None:
        """Noun for what of the data `value` holds a copy of ("inputs", "labels"), or None.

        Args:
            value: a tensor, an array, a sequence of numbers, bytes; anything else holds nothing itself.
            exactly: whether only shared memory and exact copies count, as in weights that were trained on the data.
            alike: whether it holds examples of the same kind, as public rows are. Two digits share corners, two rows of a
                census their answers, so that runs of neighbors are no evidence, and copies of examples as a whole are.
        """
        if issubclass(type(value), torch.UntypedStorage):
            entries = torch.empty(0, dtype=torch.uint8, device=value.device).set_(value)
            copied = self.among(entries.cpu().numpy().tobytes(), exactly=exactly, alike=alike)
            return self.sharing(entries) or copied
        if issubclass(type(value), Tensor | np.ndarray) and (shared := self.sharing(value)) is not None:
            return shared
        for numbers in tensors_in(value):
            found = self._copied(numbers, exactly, alike)
            if found is not None:
                return found
        return None

    def sharing(self, value: Tensor | NDArray[Any]) -> str | None:
        """Noun for what of the data shares entries in memory with a tensor or an array, or None."""
        memory = memory_of(value, "")
        if memory is None:
            return None
        for own in self._memory:
            if own.start < memory.end and memory.start < own.end:
                if own.addresses is None or memory.addresses is None:
                    dense, strided = (own, memory) if own.addresses is None else (memory, own)
                    places = strided.addresses
                    if places is None or bool(((places >= dense.start) & (places < dense.end)).any()):
                        return own.what
                elif len(np.intersect1d(own.addresses, memory.addresses)):
                    return own.what
        return None

    def _copied(self, numbers: Tensor, exactly: bool, alike: bool) -> str | None:
        if numbers.numel() < 2:
            return None
        if not exactly:
            for what, labels in self._labels:
                if _holds_labels(numbers, labels):
                    return what
        if not self._inputs:
            return None
        short = numbers.dtype.is_floating_point and numbers.dtype.itemsize < 4
        dtype = numbers.dtype if short else torch.float32
        if dtype not in self._runs:
            self._runs[dtype] = _Runs(self._inputs, dtype)
        if not alike and self._runs[dtype].among(numbers):
            return "inputs"
        if not exactly and any(vectors.among(numbers) for vectors in self._vectors):
            return "inputs"
        return None

    @cached_property
    def _inputs(self) -> list[Tensor]:
        """The inputs by batch, then targets that are no classes: data like inputs."""
        inputs = [batch.inputs.detach() for batch in self._batches]
        return inputs + [tensor.detach().reshape(1, -1) for _, tensor in self._told if _is_regression(tensor)]

    @cached_property
    def _labels(self) -> list[tuple[str, Tensor]]:
        return [(what, found) for what, tensor in self._told if (found := _label_sequence(tensor)) is not None]

    @cached_property
    def _memory(self) -> list[Memory]:
        parts = [("inputs", batch.inputs) for batch in self._batches] + self._told
        return [memory for what, tensor in parts if (memory := memory_of(tensor, what)) is not None]

    @cached_property
    def _vectors(self) -> list[_Vectors]:
        """Examples, channels and features, by their length."""
        found: dict[tuple[int, int], list[Tensor]] = {}
        for inputs in self._inputs:
            examples = inputs.reshape(inputs.shape[0], -1)
            size, channels = examples.shape[1], inputs.shape[1] if inputs.dim() > 2 else 1
            found.setdefault((size, channels), []).append(examples)
            if channels > 1 and inputs.dim() > 2:
                found.setdefault((size // channels, channels), []).append(examples.reshape(-1, size // channels))
            if len(examples) >= _FEWEST_VALUES:
                step = max(1, size // _MOST_COLUMNS)
                found.setdefault((len(examples), 1), []).append(examples.T[::step])
        return [_Vectors(parts, channels) for (size, channels), parts in found.items() if size >= _FEWEST_VALUES]


class _Runs:
    """Runs of neighbors in examples, as hashes of their bits in one number format."""

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype) -> None:
        hashes, values = [], []
        self._lengths = sorted({min(_RUN, part[0].numel()) for part in parts} - {1})
        total = sum(part.numel() for part in parts)
        for part in parts:
            examples = _bits(part.to(dtype)).reshape(len(part), -1)
            length = min(_RUN, examples.shape[1])
            windows = np.lib.stride_tricks.sliding_window_view(examples, length, axis=1).reshape(-1, length)
            windows = windows[:: 1 + total // _MOST_RUNS]
            windows = windows[_telling(windows)]
            hashes.append(_hash(windows))
            values.append(np.unique(windows))
        self._hashes = np.unique(np.concatenate(hashes))
        every = np.unique(np.concatenate(values))
        self._shift = 32 - min(26, max(10, 3 + math.ceil(math.log2(1 + len(every)))))
        self._known = np.zeros(2 ** (32 - self._shift), dtype=bool)
        self._known[self._slots(every)] = True

    def among(self, numbers: Tensor) -> bool:
        """True if one of the runs stands in `numbers`."""
        if not len(self._hashes):
            return False
        flat = numbers.reshape(-1)
        for start in range(0, len(flat), CHUNK):
            bits = _bits(flat[start : start + CHUNK + _RUN - 1])
            if any(self._of_length(bits, length) for length in self._lengths):
                return True
        return False

    def _of_length(self, bits: NDArray[np.int32], length: int) -> bool:
        if len(bits) < length:
            return False
        known = np.cumsum(np.concatenate([[0], self._known[self._slots(bits)]]), dtype=np.int32)
        steps = np.cumsum(np.concatenate([[0, 0], bits[1:] != bits[:-1]]), dtype=np.int32)
        places = np.flatnonzero((known[length:] - known[:-length] == length) & (steps[length:] > steps[1 : 1 - length]))
        for first in range(0, len(places), CHUNK // _RUN):
            windows = bits[places[first : first + CHUNK // _RUN, None] + np.arange(length)]
            if bool(np.isin(_hash(windows), self._hashes).any()):
                return True
        return False

    def _slots(self, bits: NDArray[np.int32]) -> NDArray[np.uint32]:
        slots: NDArray[np.uint32] = (bits.view(np.uint32) * np.uint32(2654435769)) >> np.uint32(self._shift)
        return slots


class _Vectors:
    """Private vectors of one length, told from others by their shape, then value by value."""

    def __init__(self, parts: Sequence[Tensor], channels: int) -> None:
        self._length, self._channels = parts[0].shape[1], channels
        self._parts = parts
        step = max(1, _CACHED // self._length)
        shapes = np.concatenate([_shape(rows) for part in parts for rows in part.split(step)])
        places = [
            np.stack([np.full(len(part), number), np.arange(len(part))], axis=1) for number, part in enumerate(parts)
        ]
        order = np.argsort(shapes[:, 0])
        order = order[np.isfinite(shapes[order, 0])]
        self._shapes, self._places = shapes[order], np.concatenate(places)[order]

    def among(self, numbers: Tensor) -> bool:
        """True if one of the vectors stands in `numbers`, its values in any order and all of them a x + b."""
        length, count = self._length, numbers.numel()
        if count < length or count % length or not len(self._shapes):
            return False
        tolerance = _tolerance(numbers)
        if tolerance is None:
            return False
        # Side by side, with the channels last, or with the examples last.
        for apart in sorted({1, self._channels, count // length}):
            if count % (length * apart) == 0:
                groups = numbers.reshape(-1, length, apart)
                step, width = max(1, _CACHED // (length * apart)), max(1, _CACHED // length)
                for some in groups.split(step):
                    for part in some.split(width, dim=2):
                        if self._in_blocks(part.transpose(1, 2).reshape(-1, length), tolerance):
                            return True
        return False

    def _in_blocks(self, blocks: Tensor, tolerance: float) -> bool:
        shapes = _shape(blocks)
        # Bytes that are no numbers make infinite ones.
        shapes[~np.isfinite(shapes).all(axis=1)] = np.nan
        # Rounding of single values averages out in moments.
        slack = np.array([12 / math.sqrt(self._length)] * 2 + [1.0, 1.0]) * tolerance * (1 + np.abs(shapes))
        low, high = (np.searchsorted(self._shapes[:, 0], shapes[:, 0] + sign * slack[:, 0]) for sign in (-1, 1))
        block = np.repeat(np.arange(len(blocks)), high - low)
        own = np.arange(len(block)) - np.repeat(np.cumsum(high - low) - high, high - low)
        near = (np.abs(self._shapes[own] - shapes[block]) <= slack[block]).all(axis=1)
        for pair in np.flatnonzero(near)[:_MOST_PAIRS]:
            number, row = self._places[own[pair]]
            if _same_up_to_scale(_floats(self._parts[number][row]), _floats(blocks[block[pair]]), tolerance):
                return True
        return False


def _same_up_to_scale(private: Floats, other: Floats, tolerance: float) -> bool:
    """True if the two are the same after a shift and a scale: in their order, or, where there are many values, in any."""
    first, second = _standardized(private), _standardized(other)
    counts = np.unique(private, return_counts=True)[1]
    shares, many = counts / len(private), len(counts) >= (_FEWEST_ROUNDED if tolerance > 1e-3 else _FEWEST_VALUES)
    if min(np.abs(first - second).max(), np.abs(first + second).max()) <= tolerance:
        telling = many or -float((shares * np.log2(shares)).sum()) * len(private) >= _BITS
        return telling and not _evenly_spaced(private)
    first, second = np.sort(first), np.sort(second)
    apart = min(np.abs(first - second).max(), np.abs(first + second[::-1]).max())
    return many and bool(apart <= tolerance) and not _evenly_spaced(first)


def _evenly_spaced(values: Floats) -> bool:
    steps = np.diff(values)
    return bool(np.allclose(steps, steps[0]))


def _standardized(values: Floats) -> Floats:
    centered: Floats = values - values.mean()
    with np.errstate(all="ignore"):
        scaled: Floats = centered / np.sqrt(np.square(centered).mean())
    return scaled


def _shape(rows: Tensor) -> Floats:
    """Numbers of each row that neither order nor shift nor scale changes, (n, 4); NaN where it is constant.

    Skewness without its sign, kurtosis, and how many standard deviations the two ends lie from the mean, the nearer first.
    """
    centered = rows.to(torch.float64)
    centered = centered - centered.mean(dim=1, keepdim=True)
    squares = centered * centered
    variance = squares.mean(dim=1)
    skew, tails = (squares * centered).mean(dim=1) / variance**1.5, (squares * squares).mean(dim=1) / variance**2
    ends = torch.stack([centered.amax(dim=1), -centered.amin(dim=1)]).sort(dim=0).values / variance.sqrt()
    shapes: Floats = torch.stack([skew.abs(), tails, *ends], dim=1).cpu().numpy()
    return shapes


def _tolerance(numbers: Tensor) -> float | None:
    """Rounding of standardized values in the format of a copy; None where it is too coarse to compare."""
    if numbers.dtype.is_floating_point:
        return {torch.float16: 5e-3, torch.bfloat16: 3e-2}.get(numbers.dtype, 1e-4)
    spread = float(numbers.to(torch.float64).std())
    return max(1e-4, 0.75 / spread) if spread >= 4 else (1e-4 if numbers.numel() and spread > 0 else None)


def _hash(windows: NDArray[np.int32]) -> NDArray[np.int64]:
    with np.errstate(over="ignore"):
        hashes: NDArray[np.int64] = (windows.astype(np.int64) * _FACTORS[: windows.shape[1]]).sum(axis=1)
    return hashes


def _telling(windows: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Mask of the runs that chance does not bring: of enough different values, not evenly spaced."""
    values = np.sort(windows, axis=1)
    fresh = np.concatenate([np.ones((len(values), 1), dtype=bool), values[:, 1:] != values[:, :-1]], axis=1)
    numbers = values.view(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        # Whole and half numbers are common, levels of 8-bit images less so, other numbers hardly come twice.
        bits = np.where(
            np.mod(2 * numbers, 1) == 0, 3.0, np.where(np.abs(255 * numbers - np.rint(255 * numbers)) < 1e-4, 9.0, 20.0)
        )
        steps = np.diff(windows.view(np.float32).astype(np.float64), axis=1)
        even = (
            (np.abs(steps - steps[:, :1]) <= 1e-5 * np.abs(steps[:, :1])).all(axis=1) if steps.shape[1] > 1 else False
        )
    mask: NDArray[np.bool_] = (
        ((fresh * bits).sum(axis=1) >= _BITS) & ~np.asarray(even) & np.isfinite(numbers).all(axis=1)
    )
    return mask


def _bits(values: Tensor) -> NDArray[np.int32]:
    """The values in single precision, as the whole numbers of the same bits; -0 as 0."""
    single = values.to(torch.float32).contiguous() + 0.0
    return single.cpu().numpy().view(np.int32)


def _floats(values: Tensor) -> Floats:
    return values.to(torch.float64).cpu().numpy()


def _holds_labels(numbers: Tensor, labels: Tensor) -> bool:
    """True if labels stand in `numbers` in their order, or as one-hot rows."""
    size, count = len(labels), numbers.numel()
    if count < size:
        return False
    if count % size == 0 and count > size:
        shapes = [numbers.reshape(size, -1)] + ([numbers.T] if numbers.dim() == 2 and numbers.shape[1] == size else [])
        if any(_is_one_hot(rows, labels) for rows in shapes):
            return True
    shares = torch.bincount(labels - labels.min()).double() / size
    entropy = float(-(shares[shares > 0] * shares[shares > 0].log2()).sum())
    if count > size and size * entropy - math.log2(count) < _LABEL_BITS:
        return False
    columns = numbers.unbind(1) if numbers.dim() == 2 and 1 < numbers.shape[1] <= _MOST_COLUMNS else ()
    return any(_in_order(one, labels) for one in (numbers.reshape(-1), *columns))


def _in_order(flat: Tensor, labels: Tensor) -> bool:
    starts = torch.nonzero(flat[: max(0, len(flat) - len(labels) + 1)] == labels[0]).reshape(-1)
    for place in range(1, len(labels)):
        if not len(starts):
            return False
        starts = starts[flat[starts + place] == labels[place]]
    return bool(len(starts))


def _is_one_hot(rows: Tensor, labels: Tensor) -> bool:
    if rows.shape[1] <= int(labels.max()) or int(labels.min()) < 0:
        return False
    rows = rows.to(torch.float64) if rows.dtype == torch.bool else rows
    high, low = rows.amax(), rows.amin()
    if not bool(high > low) or not torch.equal(rows.argmax(dim=1), labels):
        return False
    tops = rows == high
    return bool((tops.sum(dim=1) == 1).all()) and bool((tops | (rows == low)).all())


def _label_sequence(targets: Tensor) -> Tensor | None:
    """The labels in order; None for fewer than eight, for numbers that are no classes, and for sequences without a secret."""
    values = targets.detach().cpu()
    if values.dim() == 2 and values.is_floating_point() and values.shape[1] > 1:
        classes = values.argmax(dim=1)
        values = classes if _is_one_hot(values, classes) else values
    values = values.reshape(-1)
    if len(values) < FEWEST_NUMBERS or values.is_complex() or not bool((values == values.round()).all()):
        return None
    labels = values.to(torch.int64)
    steps = labels.diff()
    return None if bool((steps == steps[0]).all()) else labels


def _is_regression(targets: Tensor) -> bool:
    return targets.is_floating_point() and not bool((targets == targets.round()).all())
