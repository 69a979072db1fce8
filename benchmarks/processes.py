"""Processes as Linux tells of them in /proc: the workers of this one, their memory and processor time."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICK = os.sysconf("SC_CLK_TCK")


def children() -> list[int]:
    """Processes that this one has started."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [one for one in numbers if (state := _state(one)) and int(state[1]) == os.getpid()]


def resident(process: int) -> float:
    """Resident memory in MB; 0 where the process is gone."""
    state = _state(process)
    return int(state[21]) * _PAGE / 1e6 if state else 0.0


def processor_seconds(process: int) -> float:
    """Processor time so far; 0 where the process is gone."""
    state = _state(process)
    return (int(state[11]) + int(state[12])) / _TICK if state else 0.0


def _state(process: int) -> list[str]:
    try:
        # The name, in brackets, may hold anything.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
