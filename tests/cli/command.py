"""The command line, as a process of its own or, without the seconds that importing torch takes, in this one."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from gradleak.cli import main

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def started(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What `gradleak` with these arguments says as a process of its own, with `path` before all others."""
    known = [path and str(path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, known))}
    command = [sys.executable, "-m", "gradleak", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)


def called(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What `gradleak` with these arguments says in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    try:
        with (
            mock.patch("gradleak.cli.process.end_at_signals"),
            mock.patch.object(sys, "argv", ["gradleak", *arguments]),
            mock.patch.dict(os.environ, ENVIRONMENT),
            contextlib.chdir(ROOT),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    return subprocess.CompletedProcess(list(arguments), code, out.getvalue(), err.getvalue())
