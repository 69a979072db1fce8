"""Tasks on a Ray cluster: one of this machine, or one that runs already."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.auditing.executor import Cluster, Executor, Probe, refuse, sent, worked
from gradleak.auditing.parcel import Arrays, Parcel
from gradleak.auditing.work import Call, Common, Done, Freight, failed
from gradleak.audits.base import Task
from gradleak.results import InputError, PlanError, WriteError

try:
    import ray
except ImportError as error:
    raise InputError("executor: expected the package `ray`; pip install 'gradleak[ray]'") from error


@dataclass(frozen=True, kw_only=True)
class Ray(Cluster):
    """Workers of Ray, a core each, that share the folder of the run.

    The model, the data and the plan are put into Ray's store once. A task whose worker ends is done again, from the state
    that it left. Private data reach the workers: use a cluster of your own.

    Attributes:
        address: of a cluster, such as `auto` or `ray://host:10001`; None for one of this machine, ended with the run.
        jobs: cores of such a cluster; None for all.
        retries: how often a task is done again after the end of its worker.
        resources: that a worker must have, such as `{"GPU": 1}`.
    """

    address: str | None = None
    retries: int = 3
    resources: dict[str, float] | None = None

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        if calls:
            with self.held(calls) as held:
                yield from held.results(calls)

    @contextmanager
    def held(self, calls: Sequence[Call]) -> Iterator[Executor]:
        """A cluster whose store has the plan."""
        probe = Probe.of(calls[0].folder, calls[0].device)
        try:
            with self._cluster():
                own = dict(self.resources or {})
                settings = {"num_cpus": 1, "num_gpus": own.pop("GPU", 0), "resources": own, "max_retries": self.retries}
                with sent():
                    freight = Freight.of(calls)
                    common = ray.put(freight.common)
                remote = ray.remote(_done).options(**settings)
                yield _Held(remote=remote, freight=freight, common=common, probe=probe)
        finally:
            probe.close()

    @contextmanager
    def _cluster(self) -> Iterator[None]:
        started = not ray.is_initialized()
        if started:
            settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
            cores = {"num_cpus": self.workers} if self.address is None else {}
            try:
                ray.init(address=self.address, **settings, **cores)
            # What a cluster raises at its start is its own affair: bare exceptions of a busy machine among them.
            except Exception as error:
                where = "a Ray cluster" + ("" if self.address is None else f" at {self.address}")
                raise PlanError(f"executor: expected {where}, got none ({error})") from error
        try:
            yield
        finally:
            if started:
                ray.shutdown()


@dataclass(frozen=True, kw_only=True)
class _Held(Executor):
    """A cluster whose store has the plan."""

    remote: Any
    freight: Freight
    common: Any
    probe: Probe

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        with sent():
            parcels, arrays = self.freight.of_some(calls)
        later = ray.put(arrays)
        waiting = {
            self.remote.remote(
                parcels[call.task.name], self.common, later, call.folder.resolve(), self.probe
            ): call.task
            for call in calls
        }
        while waiting:
            [reference], _ = ray.wait(list(waiting), num_returns=1)
            yield _outcome(reference, waiting.pop(reference))

    @property
    def width(self) -> int:
        """Number of cores that are there now."""
        return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _done(parcel: Parcel, common: Common, later: Arrays, folder: Path, probe: Probe) -> Sequence[Any]:
    refuse([probe.difference()])
    return worked(common.call(parcel, folder, later))[1]


def _outcome(reference: Any, task: Task[Any]) -> Done:
    """The findings behind a reference; those of a task that ended worker after worker are failed ones.

    Raises:
        PlanError: if a worker differs.
        WriteError: if a worker cannot write.
    """
    try:
        return task, ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PlanError | WriteError):
            raise error.cause from None
        return task, failed(task, f"{type(error.cause).__name__}: the worker of this task failed")
    except ray.exceptions.RayError as error:
        return task, failed(task, f"{type(error).__name__}: the workers that did this task ended")
