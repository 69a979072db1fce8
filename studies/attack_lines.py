"""Lines and rows of the attack table, and the file that keeps them while a study runs."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from scipy import stats

from gradleak.attacks import Blind, Checkpoint
from gradleak.core import Batch
from gradleak.results import InputError
from gradleak.scoring import blind_baseline
from studies.study import Finding

HEAD = '{"key": '
"""How a line of a file of cells begins."""

BASELINE = "best guess without the update, chosen with the truth"


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one attack made of one image.

    Attributes:
        image: its place among the study's images.
        mse: in pixels scaled to [0, 1], or None where nothing was claimed.
        ssim: or None.
        exact: whether the image was hit exactly.
        outcome: of the attack.
        labels: where the label came from.
        iterations: of the chosen start.
        counted: plain gradients by the attack's rule.
        measured: processor time over that of a plain gradient; None where the attack was resumed.
        note: why there is no claim.
        st_lpips: or None.
        loss: matching loss of the claim, or None.
        history: (plain gradients, matching loss so far) at a few places of the search.
        support: what `InventionCheck` says of the claim; "" where it was not asked.
        moved: by how much the claim moved there (pixel RMSE), or None.
        residual: relative residual of the claim there, or None.
    """

    image: int
    mse: float | None
    ssim: float | None
    exact: bool
    outcome: str
    labels: str
    iterations: int
    counted: float
    measured: float | None
    note: str = ""
    st_lpips: float | None = None
    loss: float | None = None
    history: Sequence[Sequence[float]] = ()
    support: str = ""
    moved: float | None = None
    residual: float | None = None

    def __post_init__(self) -> None:
        """A history that was read back from JSON equals the one that was written."""
        object.__setattr__(self, "history", tuple(tuple(place) for place in self.history))

    @property
    def psnr(self) -> float | None:
        """In dB; infinite for equal images."""
        if self.mse is None:
            return None
        return math.inf if self.mse == 0 else -10 * math.log10(self.mse)


@dataclass(frozen=True)
class Row:
    """One attack on one network."""

    network: str
    attack: str
    labels: str
    lines: Sequence[Line]

    columns: ClassVar[tuple[str, ...]] = (
        "network", "attack", "labels", "n", "PSNR (dB)", "smallest to largest", "SSIM", "MSE", "exact hits",
        "plain gradients", "measured", "ended",
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Network and attack."""
        return f"{self.network}, {self.attack}"

    def values(self, name: str) -> list[float]:
        """The values of one quantity, ascending; None left out."""
        return sorted(value for line in self.lines if (value := getattr(line, name)) is not None)

    def median(self, name: str) -> float | None:
        """The median, of each quantity by itself; None without a value."""
        values = self.values(name)
        return statistics.median(values) if values else None

    def finding(self) -> Finding:
        """The median PSNR with its interval."""
        values = self.values("psnr")
        return Finding(
            quantity=f"{self.title}: median PSNR (dB)",
            ours=self.median("psnr"),
            interval=median_interval(values),
            n=len(values),
            note=next((line.note for line in self.lines if line.note), ""),
        )

    def cells(self) -> list[str]:
        """The row as it is printed, by `columns`."""
        values = self.values("psnr")
        counted, measured = self.median("counted"), self.median("measured")
        ends = sorted({line.outcome for line in self.lines})
        return [
            self.network,
            self.attack,
            self.labels,
            str(len(self.lines)),
            _number(self.median("psnr"), ".1f"),
            f"{values[0]:.1f} to {values[-1]:.1f}" if values else "-",
            _number(self.median("ssim"), ".3f"),
            _number(self.median("mse"), ".2g"),
            f"{sum(line.exact for line in self.lines)} of {len(self.lines)}",
            _number(counted, ",.0f"),
            _number(measured, ",.0f"),
            ", ".join(f"{sum(line.outcome == end for line in self.lines)} {end}" for end in ends),
        ]

    def sentence(self) -> str:
        """A line of progress."""
        psnr, counted = _number(self.median("psnr"), ".1f"), _number(self.median("counted"), ",.0f")
        return f"{self.title}: median PSNR {psnr} dB of {len(self.lines)} images for {counted} plain gradients"


class Store:
    """Groups of lines by key, in a JSONL file that grows as attacks end; a torn last line is as if never written.

    Attributes:
        reused: groups that were found in the file so far.

    Raises:
        InputError: for a file that holds something else.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._groups: dict[str, list[Line]] = {}
        self._read: set[str] = set()
        self.reused = 0
        if self._path is None:
            return
        parent = next((folder for folder in self._path.parents if folder.exists()), Path())
        if self._path.is_dir() or not parent.is_dir():
            raise InputError(f"cells: expected the name of a file in a folder, got {path!r}")
        if not self._path.exists():
            return
        for place, raw in enumerate(self._path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            # A machine that lost power can leave zeros at the end.
            text = raw.strip("\r\0")
            if text and not (text.startswith(HEAD) or HEAD.startswith(text)):
                raise InputError(
                    f"cells: expected a file that a study wrote, or a new one, got {self._path}, whose line {place} is no "
                    "cell; name another file"
                )
            try:
                entry = json.loads(text)
                digest = _digest(entry["key"])
                self._groups[digest] = [Line(**line) for line in entry["lines"]]
                self._read.add(digest)
            except (ValueError, KeyError, TypeError, RecursionError):
                continue

    def lines(self, key: Mapping[str, Any]) -> list[Line] | None:
        """The lines of a group, or None; also those kept under the key without `content`, as older files have it."""
        digest = next((one for one in map(_digest, (key, _without_content(key))) if one in self._groups), None)
        self.reused += digest in self._read
        return None if digest is None else self._groups[digest]

    def add(self, key: Mapping[str, Any], lines: Sequence[Line]) -> None:
        """Keep the lines of a group, on disk where there is a file."""
        self._groups[_digest(key)] = list(lines)
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"key": key, "lines": [asdict(line) for line in lines]}
        with self._path.open("a", encoding="utf-8") as file:
            # A line of its own even after a torn one.
            file.write(f"\n{json.dumps(entry)}\n")

    def checkpoint(self, key: Mapping[str, Any]) -> Checkpoint | None:
        """Where the attack on a group leaves its state; None without a file."""
        if self._path is None:
            return None
        old, new = (
            self._path.with_name(f"{self._path.name}.{_digest(one)[:12]}.state") for one in (_without_content(key), key)
        )
        return Checkpoint(path=old if old.exists() else new)


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Of ascending values, the innermost pair of order statistics that holds the median with 95 %; None for too few."""
    count = len(values)
    outside = int(stats.binom.ppf(0.025, count, 0.5)) - 1
    while outside >= 0 and stats.binom.cdf(outside, count, 0.5) > 0.025:
        outside -= 1
    return None if outside < 0 else (values[outside], values[count - 1 - outside])


def conclude(rows: Sequence[Row]) -> list[str]:
    """Network by network: the best attack, exact hits, and who is no better than blind."""
    lines = []
    for network in dict.fromkeys(row.network for row in rows):
        mine = [row for row in rows if row.network == network and row.median("psnr") is not None]
        blind = next(row for row in mine if row.attack == BASELINE).median("psnr")
        real = [row for row in mine if row.attack not in (BASELINE, Blind.name)]
        if not real or blind is None:
            continue
        best = max(real, key=lambda row: row.median("psnr") or -math.inf)
        hits = [f"{row.attack} {sum(line.exact for line in row.lines)} of {len(row.lines)}" for row in real
                if any(line.exact for line in row.lines)]  # fmt: skip
        poor = [row.attack for row in real if (row.median("psnr") or -math.inf) <= blind]
        text = (
            f"{network}: best is {best.attack} with a median PSNR of {best.median('psnr'):.1f} dB, {blind:.1f} dB without "
            f"the update; exact hits: {', '.join(hits) or 'none'}"
        )
        lines.append(text + (f"; no better than without the update: {', '.join(poor)}." if poor else "."))
    return lines


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def content_of(examples: Sequence[Batch]) -> str:
    """A hash of inputs and targets, for keys: two files of one name hold different images."""
    total = hashlib.sha256()
    for example in examples:
        for tensor in (example.inputs, example.targets):
            total.update(str(tuple(tensor.shape)).encode())
            total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def blind_lines(examples: Sequence[Batch]) -> list[Line]:
    """The best guess without the update, chosen with the truth, image by image.

    Args:
        examples: one image each.
    """
    lines = []
    for image, example in enumerate(examples):
        values = {score.name: score.value for score in blind_baseline(example)}
        lines.append(
            Line(
                image=image,
                mse=values["mse"],
                ssim=values["ssim"],
                exact=values["exact_hits"] == 1.0,
                outcome="-",
                labels="-",
                iterations=0,
                counted=0.0,
                measured=None,
            )
        )
    return lines


def _without_content(key: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in key.items() if name != "content"}


def _digest(key: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
