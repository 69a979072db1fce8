from __future__ import annotations

import subprocess
import sys

import pytest

from gradleak.results import (
    GradleakError,
    InconsistentUpdateError,
    InputError,
    KnowledgeError,
    PlanError,
    UnsupportedError,
)


@pytest.mark.parametrize("error", [InconsistentUpdateError, InputError, KnowledgeError, PlanError, UnsupportedError])
def test_every_error_is_a_gradleak_error(error: type[Exception]) -> None:
    assert issubclass(error, GradleakError)


def test_results_imports_no_torch() -> None:
    code = (
        "import sys, gradleak.results, gradleak.results.record, gradleak.results.score\n"
        "bad = sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'numpy', 'scipy', 'matplotlib'})\n"
        "assert not bad, bad"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
