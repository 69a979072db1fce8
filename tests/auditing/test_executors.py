"""Tasks elsewhere: the same record from every executor, whatever happens to its workers."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gradleak.auditing import Plan, build_plan, run_plan
from gradleak.auditing.executor import Executor, Loky, Probe, refuse, worked
from gradleak.auditing.work import Call, Done
from gradleak.results import InputError, PlanError, Record
from tests.auditing.test_pieces import CONTENT
from tests.auditing.test_pieces import plan as in_pieces
from tests.auditing.test_resume import QUICK_PLAN

EXTRAS = {"dask": "distributed", "ray": "ray"}


def _plan() -> Plan:
    return build_plan(tomllib.loads(QUICK_PLAN), folder=Path())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return run_plan(_plan(), tmp_path_factory.mktemp("whole"), jobs=1)


@dataclass(frozen=True)
class Backwards(Executor):
    """The last task first, as an executor of a user's own."""

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        yield from (worked(call) for call in reversed(calls))


def test_an_executor_of_ones_own_gives_the_same_record(whole: Record, tmp_path: Path) -> None:
    assert run_plan(_plan(), tmp_path, executor=Backwards()).canonical() == whole.canonical()


@pytest.mark.parametrize("jobs", [0, -1])
def test_less_than_one_job_is_refused(jobs: int) -> None:
    with pytest.raises(InputError, match="jobs: expected a whole number of at least 1"):
        Loky(jobs=jobs)


def test_shared_memory_is_that_of_several_processes() -> None:
    assert Loky(jobs=2).shares_memory
    assert not Loky(jobs=1).shares_memory
    assert not Backwards().shares_memory


def test_a_worker_like_the_run_has_no_difference(tmp_path: Path) -> None:
    probe = Probe.of(tmp_path)
    assert probe.difference() is None
    probe.close()
    assert list(tmp_path.iterdir()) == []


def test_a_worker_with_another_version_is_refused(tmp_path: Path) -> None:
    probe = Probe.of(tmp_path)
    other = replace(probe, versions=probe.versions | {"torch": "1.0"})
    with pytest.raises(PlanError, match=r"expected workers like this process; .* has torch .*, this run has 1\.0"):
        refuse([None, other.difference()])


def test_a_worker_that_does_not_see_the_folder_is_refused(tmp_path: Path) -> None:
    probe = replace(Probe.of(tmp_path), folder=tmp_path / "elsewhere")
    with pytest.raises(PlanError, match=r"does not see the folder .*elsewhere: use one that all workers share"):
        refuse([probe.difference()])


@pytest.mark.parametrize("name", EXTRAS)
def test_an_executor_without_its_package_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, EXTRAS[name], None)
    monkeypatch.delitem(sys.modules, f"gradleak.auditing.executor_{name}", raising=False)
    with pytest.raises(InputError, match=rf"pip install 'gradleak\[{name}\]'"):
        importlib.import_module(f"gradleak.auditing.executor_{name}")


@pytest.fixture(params=EXTRAS)
def cluster(request: pytest.FixtureRequest) -> Executor:
    """Two workers of this machine."""
    name = str(request.param)
    pytest.importorskip(EXTRAS[name], reason=f"{EXTRAS[name]} is not installed: make test-distributed")
    if name == "dask":
        from gradleak.auditing.executor_dask import Dask

        return Dask(jobs=2)
    from gradleak.auditing.executor_ray import Ray

    return Ray(jobs=2)


@pytest.mark.distributed
def test_a_cluster_of_no_workers_is_refused(cluster: Executor) -> None:
    with pytest.raises(InputError, match="jobs: expected a whole number of at least 1, got 0"):
        replace(cluster, jobs=0)  # type: ignore[call-arg]


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
def test_a_cluster_gives_the_same_record(cluster: Executor, whole: Record, tmp_path: Path) -> None:
    assert run_plan(_plan(), tmp_path, executor=cluster).canonical() == whole.canonical()
    assert not list(tmp_path.glob(".seen-*"))


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
def test_a_cluster_gives_the_same_record_of_tasks_in_pieces(cluster: Executor, tmp_path: Path) -> None:
    here = run_plan(in_pieces(), tmp_path / "here", jobs=1)
    assert run_plan(in_pieces(), tmp_path / "there", executor=cluster).canonical() == here.canonical()


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("cut", [False, True])
def test_a_worker_that_is_killed_costs_time_alone(cluster: Executor, cut: bool, tmp_path: Path) -> None:
    # Of the plan in pieces four tasks end before what is trained is read in further ones.
    make, ended = (_long_pieces, 4) if cut else (_long_plan, 2)
    killed: list[int] = []

    def kill_one() -> None:
        # A worker of Ray is known by the task that it does, and between first and further pieces there is none.
        while not killed and time.monotonic() < until:
            time.sleep(0.1)
            killed.extend(_workers()[:1])
        for process in killed:
            os.kill(process, signal.SIGKILL)

    killer = threading.Thread(target=kill_one)

    def kill(done: int, total: int, what: str) -> None:
        if done == ended:
            killer.start()

    until = time.monotonic() + 120
    record = run_plan(make(), tmp_path / "killed", executor=cluster, progress=kill)
    killer.join()
    assert killed
    assert record.complete
    assert record.canonical() == run_plan(make(), tmp_path / "whole", jobs=1).canonical()


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
def test_a_plan_that_a_killed_worker_alone_held_is_shipped_again(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: make test-distributed")
    from gradleak.auditing.executor_dask import Dask

    killed: list[int] = []

    def kill(done: int, total: int, what: str) -> None:
        if done == 1 and not killed:
            killed.extend(_workers())
            for process in killed:
                os.kill(process, signal.SIGKILL)

    record = run_plan(in_pieces(), tmp_path / "killed", executor=Dask(jobs=1), progress=kill)
    assert len(killed) == 1
    assert record.canonical() == run_plan(in_pieces(), tmp_path / "whole", jobs=1).canonical()


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
def test_what_a_cluster_began_another_executor_ends(cluster: Executor, whole: Record, tmp_path: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(_plan(), tmp_path, executor=cluster, progress=stop)
    assert Record.load(tmp_path).missing
    assert run_plan(_plan(), tmp_path, jobs=1).canonical() == whole.canonical()


@pytest.mark.slow
def test_two_processes_give_the_same_record_of_tasks_in_pieces(tmp_path: Path) -> None:
    one, two = (run_plan(in_pieces(), tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert one.complete
    assert two.canonical() == one.canonical()


@pytest.mark.slow
# Joblib tells of tasks that were under way.
@pytest.mark.filterwarnings("ignore:.*tasks:UserWarning")
def test_a_run_that_ends_among_further_pieces_is_gone_on_with(tmp_path: Path) -> None:
    def stop(done: int, total: int, what: str) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(in_pieces(), tmp_path / "killed", jobs=2, progress=stop)
    assert Record.load(tmp_path / "killed").missing
    whole = run_plan(in_pieces(), tmp_path / "whole", jobs=1)
    assert run_plan(in_pieces(), tmp_path / "killed", jobs=1).canonical() == whole.canonical()


@pytest.mark.distributed
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: make test-distributed")
    from gradleak.auditing.executor_dask import Dask

    with pytest.raises(PlanError, match=r"expected a Dask scheduler at tcp://127.0.0.1:1, got none"):
        run_plan(_plan(), tmp_path, executor=Dask(address="tcp://127.0.0.1:1", patience=1))


@pytest.mark.distributed
def test_a_cluster_that_does_not_start_is_named(
    cluster: Executor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def late(*_: object, **__: object) -> None:
        raise Exception("The current node timed out during startup.")

    place = {"Dask": "distributed.LocalCluster", "Ray": "ray.init"}[type(cluster).__name__]
    monkeypatch.setattr(place, late)
    with pytest.raises(PlanError, match=rf"{type(cluster).__name__}.*, got none \(The current node timed out"):
        run_plan(_plan(), tmp_path, executor=cluster)


@pytest.mark.distributed
def test_workers_with_several_threads_are_refused(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="distributed is not installed: make test-distributed")
    from gradleak.auditing.executor_dask import Dask

    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster,
        pytest.raises(PlanError, match="expected workers with one thread each, got one with 2"),
    ):
        run_plan(_plan(), tmp_path, executor=Dask(address=cluster.scheduler_address))


@pytest.mark.distributed
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told"])
def test_a_scheduler_that_ends_is_named_and_the_run_goes_on(how: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed: make test-distributed")
    from gradleak.auditing.executor_dask import Dask

    file = tmp_path / "scheduler.json"
    common = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler, worker = (
        subprocess.Popen([sys.executable, "-m", f"distributed.cli.dask_{part}", *common, *rest])
        for part, rest in {"scheduler": ["--port", "0"], "worker": ["--nthreads", "1", "--no-nanny"]}.items()
    )

    def end(done: int, total: int, what: str) -> None:
        if done == 2:
            scheduler.send_signal(how)

    try:
        while not file.exists():
            time.sleep(0.1)
        with pytest.raises(PlanError, match="expected a Dask scheduler until the run ends, lost the connection"):
            run_plan(_long_plan(), tmp_path / "run", executor=Dask(scheduler_file=str(file)), progress=end)
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()
    assert Record.load(tmp_path / "run").missing
    record = run_plan(_long_plan(), tmp_path / "run", jobs=1)
    assert record.canonical() == run_plan(_long_plan(), tmp_path / "whole", jobs=1).canonical()


def _long_plan() -> Plan:
    """Attacks of a second, so that a kill comes in the middle of some."""
    text = QUICK_PLAN.replace("iterations = 2", "iterations = 60").replace("count = 2", "count = 5")
    return build_plan(tomllib.loads(text.replace("own = [0]", "own = [0, 1, 2, 3, 4]")), folder=Path())


def _long_pieces() -> Plan:
    """Rounds of half a second, so that a kill comes in the middle of some."""
    game = CONTENT["inference"]["group"] | {"trials": 1000, "shadow_batches": 1000, "rounds": 4}
    return build_plan(CONTENT | {"inference": {"group": game}}, folder=Path())


def _workers() -> list[int]:
    """The processes that work for this one, by what a cluster calls them."""
    found = []
    for process, parent, command in _processes():
        of_dask = parent == os.getpid() and "spawn_main" in command and "resource_tracker" not in command
        if of_dask or command.startswith("ray::_done"):
            found.append(process)
    return found


def _processes() -> Iterator[tuple[int, int, str]]:
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            yield int(place.name), parent, command
