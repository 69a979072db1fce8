"""Command line of the fuzzers: `python -m tools.fuzz [--only NAME] [--cases N] [--seconds S] [--seed K]`."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path

from tools.fuzz.harness import Fuzzer, run

# Modules with a `FUZZER` each.
NAMES = tuple(
    sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "__main__", "harness")
    )
)


def main() -> int:
    """Run the fuzzers and print what they found; the exit status is 1 for any fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--only", choices=NAMES, help="one fuzzer")
    parser.add_argument("--cases", type=int, default=5000, help="cases of each fuzzer")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all fuzzers together")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    names = [asked.only] if asked.only else list(NAMES)
    faults = 0
    for name in names:
        fuzzer: Fuzzer = importlib.import_module(f"tools.fuzz.{name}").FUZZER
        with tempfile.TemporaryDirectory() as folder:
            tally = run(
                fuzzer,
                Path(folder),
                seed=asked.seed,
                cases=range(asked.first, asked.first + asked.cases),
                seconds=asked.seconds / len(names),
            )
        endings = ", ".join(f"{count} {ending}" for ending, count in sorted(tally.endings.items()))
        print(f"{name}: {tally.cases} cases: {endings or 'none'}; {len(tally.faults)} faults")
        for fault in tally.faults[:5]:
            print(f"case {fault.number}:\n{fault.text}")
        faults += len(tally.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
