"""Damaged plans that are carried out: a small one that is taken runs without a failure, or is refused in one line."""

from __future__ import annotations

import random
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from gradleak.auditing import load_plan, run_plan
from gradleak.reporting import write_html, write_json, write_markdown
from gradleak.results import GradleakError, Status
from tools.fuzz.harness import Fuzzer
from tools.fuzz.plans import check_refusal, time_limit
from tools.plan_mutants import cut, damage, small_plans
from tools.toml_text import toml_text

_SECONDS = 60


def case(draw: random.Random, folder: Path) -> str:
    """Carry out one damaged plan and write its reports."""
    content: Any = cut(damage(draw, draw.choice(_plans())))
    file, out = folder / "plan.toml", Path(tempfile.mkdtemp(dir=folder))
    file.write_text(toml_text(content), encoding="utf-8", errors="surrogatepass")
    try:
        with time_limit(_SECONDS), warnings.catch_warnings():
            # What libraries warn of, a run shows; here it would be lost among thousands.
            warnings.simplefilter("ignore")
            record = run_plan(load_plan(file), out, jobs=1)
        for write, name in ((write_html, "report.html"), (write_json, "report.json"), (write_markdown, "report.md")):
            write(record, out / name)
        failed = [f"{one.item}: {one.note}" for one in record.findings if one.status is Status.FAILED]
        traces = [trace.read_text(encoding="utf-8") for trace in (out / "failures").glob("*.txt")]
        assert not failed, "\n".join([*failed[:3], *traces[:1]])
        assert record.complete, f"parts of the record are missing: {record.missing}"
    except GradleakError as refusal:
        check_refusal(refusal)
        return "refused"
    finally:
        shutil.rmtree(out, ignore_errors=True)
    return "carried out"


@cache
def _plans() -> list[dict[str, Any]]:
    return list(small_plans())


FUZZER = Fuzzer("plan_runs", case)
