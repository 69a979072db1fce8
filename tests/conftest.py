"""What every test gets: one thread, an untouched global RNG, and the reference data where it lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cpu_seconds import CpuSeconds


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("CPU time")
    group.addoption(
        "--fail-slow",
        type=float,
        metavar="FACTOR",
        help="fail a run in which an unmarked test takes more than FACTOR times the CPU time that it may take",
    )
    group.addoption("--cpu-file", metavar="PATH", help="write the CPU seconds of every test to a JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuSeconds(config), "cpu-seconds")


def pytest_sessionstart() -> None:
    # Tests run side by side; with more threads OpenMP barriers make every one of them slower.
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fixed_global_rng() -> Iterator[None]:
    """Layers that a test lets torch construct are the same in every run and in every order of tests."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(0).get_state())
        yield


@pytest.fixture
def global_rng_unchanged(fixed_global_rng: None) -> Iterator[None]:
    """Fails a test after which a global RNG stands elsewhere: gradleak draws from explicit generators only.

    For a whole module: `pytestmark = pytest.mark.usefixtures("global_rng_unchanged")`. A layer that torch
    constructs moves the global RNG, so such a test builds its layers with `nn.utils.skip_init` or gradleak.models.
    """
    torch_before = torch.random.get_rng_state()
    numpy_before = np.random.get_state()  # noqa: NPY002 - the legacy state is what is guarded
    yield
    numpy_after = np.random.get_state()  # noqa: NPY002
    moved = []
    if not torch.equal(torch_before, torch.random.get_rng_state()):
        moved.append("torch")
    if not all(np.array_equal(a, b) for a, b in zip(numpy_before, numpy_after, strict=True)):
        np.random.set_state(numpy_before)  # noqa: NPY002
        moved.append("numpy")
    if moved:
        pytest.fail(f"the test moved the global RNG of {' and '.join(moved)}: pass a generator")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder `shared` beside the repository: reference values and test-bench data."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` beside the repository: its reference values are not at hand")
    return folder
