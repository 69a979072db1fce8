"""Run every benchmark module of this folder (those with a `run()` that yields rows) and print one table.

    python -m benchmarks            all modules but those that take minutes (compiled, engines, long_record, many_tasks, scale)
    python -m benchmarks operators  only the named ones

One thread; ratios, so that numbers from different machines can be compared. The table is also written to
`benchmarks/results/latest.json`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch

import benchmarks

_HELPERS = ("__main__", "device", "measure", "model_scale", "processes")
_ON_REQUEST = ("compiled", "engines", "long_record", "many_tasks", "scale")


def main(chosen: list[str]) -> None:
    torch.set_num_threads(1)
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name not in _HELPERS]
    unknown = set(chosen) - set(names)
    if unknown:
        sys.exit(f"expected some of {', '.join(names)}, got {', '.join(sorted(unknown))}")
    rows = []
    for name in chosen or [name for name in names if name not in _ON_REQUEST]:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        for row in module.run():
            aim = "" if row.aim is None else f"(aim {row.aim:g}{'' if row.ratio <= row.aim else ', MISSED'})"
            print(f"  {row.name:<48} {row.ratio:>10.2f} {row.unit} {aim}".rstrip(), flush=True)
            rows.append({"module": name, **asdict(row)})
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    record = {"torch": torch.__version__, "python": platform.python_version(), "threads": 1, "rows": rows}
    (folder / "latest.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
