"""The peak of resident memory stays within what the budget allows, and the values do not depend on it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import json, pathlib, resource, sys
import torch
torch.set_num_threads(1)
from tests.operators.models import exposure_of
from gradleak.models import resnet8
from gradleak.operators import GradientJacobian

def peak():
    # ru_maxrss survives exec, so that a large test worker would hide the growth; VmHWM is this process's own.
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def exposure(size):
    model = resnet8(generator=torch.Generator().manual_seed(0))
    return exposure_of(model, (3, size, size), examples=1)

# A small one first: whatever torch loads on first use is not the operator's.
GradientJacobian(exposure(4)).largest_eigenvalue()
large = exposure(8)
before = peak()
operator = GradientJacobian(large, max_bytes=int(sys.argv[1]))
values = operator.gram_spectrum()
print(json.dumps({"bytes": peak() - before, "trace": float(values.sum()), "largest": float(values[-1]),
                  "fits": operator.fits, "dense_bytes": operator.shape[0] * operator.shape[1] * 8}))
"""


@pytest.mark.slow
def test_two_budgets_give_equal_values_and_keep_to_them() -> None:
    """U62: within the budget, with the same values."""
    found = {}
    for budget in (2**29, 2**25):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(budget)],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
            env={"OMP_NUM_THREADS": "1", "PATH": "", "MALLOC_TRIM_THRESHOLD_": "0"},
        )
        found[budget] = json.loads(done.stdout)
    roomy, tight = found[2**29], found[2**25]
    assert roomy["fits"]
    assert not tight["fits"]
    assert roomy["bytes"] > roomy["dense_bytes"]
    # A (120 MB) and a block of products; without A, a block of products within 32 MiB and its allocator's slack.
    assert roomy["bytes"] < roomy["dense_bytes"] + 2**29
    assert tight["bytes"] < 2 * 2**25
    for name in ("trace", "largest"):
        assert tight[name] == pytest.approx(roomy[name], rel=1e-9)
