"""Runner of fuzzers: seeds, the clock, the limit on memory, and the faults that were found."""

from __future__ import annotations

import random
import resource
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

# The most that one case may allocate beyond what the process holds.
LIMIT = 1 << 30

# One case: draws its input from the generator, tries it in the folder, and answers how it ended ("refused", "kept", ...).
# An exception is a fault; AssertionError carries a sentence on what should have been.
Case = Callable[[random.Random, Path], str]


@dataclass(frozen=True)
class Fuzzer:
    """A kind of damage.

    Attributes:
        name: for the command line.
        case: one trial.
    """

    name: str
    case: Case


@dataclass(frozen=True)
class Fault:
    """A case that ended in an exception.

    Attributes:
        number: of the case; `--only NAME --first NUMBER --cases 1` tries it again.
        text: the traceback.
    """

    number: int
    text: str


@dataclass
class Tally:
    """Results of a fuzzer.

    Attributes:
        endings: how many cases ended in which way.
        faults: the cases that ended in an exception.
    """

    endings: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """Number of cases that were tried."""
        return sum(self.endings.values()) + len(self.faults)


def run(fuzzer: Fuzzer, folder: Path, *, seed: int, cases: range, seconds: float) -> Tally:
    """Try the cases until they, or the seconds, are used up.

    Args:
        fuzzer: the kind of damage.
        folder: an empty one, for the files of a case.
        seed: with the fuzzer's name and the case's number it decides every draw.
        cases: numbers of the cases.
        seconds: no case begins later than that.
    """
    tally = Tally()
    until = time.monotonic() + seconds
    for number in cases:
        if time.monotonic() > until:
            break
        try:
            with memory_limit():
                tally.endings[fuzzer.case(random.Random(f"{seed}/{fuzzer.name}/{number}"), folder)] += 1
        except Exception:
            tally.faults.append(Fault(number, traceback.format_exc()))
    return tally


@contextmanager
def memory_limit(beyond: int = LIMIT) -> Iterator[None]:
    """Let allocations fail with MemoryError beyond so many bytes above what the process holds now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + beyond, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
