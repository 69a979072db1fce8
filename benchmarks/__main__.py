"""Run every benchmark module of this folder (those with a `run()` that yields rows) and print one table.

    python -m benchmarks            all modules but those that take minutes (`_ON_REQUEST`)
    python -m benchmarks operators  only the named ones
    python -m benchmarks --resume --minutes 4    in slices: what the file has stays, and no module begins after four minutes
    python -m benchmarks --table    nothing is run: the tables of the file

One thread; ratios, so that numbers from different machines can be compared. Rows are written to `benchmarks/results/latest.json`
(`--out`) module by module. Then follow what peers take for the same, and how the aims stand (`benchmarks/comparison.py`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import benchmarks
from benchmarks.comparison import markdown, summary

_HELPERS = ("__main__", "comparison", "device", "measure", "model_scale", "processes", "scaling")
_ON_REQUEST = ("compiled", "engines", "long_record", "many_tasks", "memory", "scale", "sketches", "start")
_LATEST = Path(__file__).parent / "results" / "latest.json"


def main() -> None:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name not in _HELPERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("modules", nargs="*", metavar="module", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=_LATEST, help="file of the rows")
    parser.add_argument("--resume", action="store_true", help="keep the modules that the file has")
    parser.add_argument("--minutes", type=float, help="begin no module after so many minutes")
    parser.add_argument("--table", action="store_true", help="run nothing")
    given = parser.parse_args()
    if unknown := set(given.modules) - set(names):
        parser.error(f"expected some of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    wanted = given.modules or [name for name in names if name not in _ON_REQUEST]
    rows = read(given.out) if given.resume or given.table else []
    if not given.table:
        torch.set_num_threads(1)
        rows, left = run(wanted, rows, given.out, given.minutes)
        if left:
            print(f"not run, for lack of time: {', '.join(left)}; the same command with --resume goes on")
    print("\n".join(["", *markdown(rows)]))


def run(
    wanted: Sequence[str], rows: list[dict[str, Any]], out: Path, minutes: float | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows with those of the wanted modules that they lack, and the modules that were not begun.

    Args:
        wanted: names of modules.
        rows: that are there already.
        out: file, written after every module.
        minutes: after which no module begins.
    """
    began = time.monotonic()
    done = {row["module"] for row in rows}
    left = [name for name in wanted if name not in done]
    while left and (minutes is None or time.monotonic() - began < 60 * minutes):
        name = left.pop(0)
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        fresh = []
        for row in module.run():
            aim = "" if row.aim is None else f"(aim {row.aim:g}{'' if row.ratio <= row.aim else ', MISSED'})"
            print(f"  {row.name:<48} {row.ratio:>10.2f} {row.unit} {aim}".rstrip(), flush=True)
            fresh.append({"module": name, **asdict(row)})
        rows = [*rows, *fresh]
        write(out, rows)
    return rows, left


def read(file: Path) -> list[dict[str, Any]]:
    """The rows of a file, or none."""
    return json.loads(file.read_text(encoding="utf-8"))["rows"] if file.exists() else []


def write(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows, peers and aims, with the versions that they came from."""
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1, "rows": [*rows]}
    file.write_text(json.dumps(record | summary(rows), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
