"""Tasks on a Dask cluster: one of this machine, or one that runs already (Slurm, Kubernetes, by hand)."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradleak.auditing.executor import Cluster, Executor, Probe, refuse, sent, worked
from gradleak.auditing.parcel import Arrays, Parcel
from gradleak.auditing.work import Call, Common, Done, Freight, failed
from gradleak.audits.base import Task
from gradleak.results import InputError, PlanError, WriteError

try:
    import distributed
except ImportError as error:
    raise InputError("executor: expected the package `distributed`; pip install 'gradleak[dask]'") from error

# Seconds without a finding after which the scheduler is asked whether it lives, and between two looks.
_ASKED, _LOOK = 5.0, 0.05


@dataclass(frozen=True, kw_only=True)
class Dask(Cluster):
    """Workers of Dask, each with one thread, that share the folder of the run.

    The model, the data and the plan are shipped to each worker once. A task whose worker ends is done again elsewhere, from
    the state that it left, as often as the scheduler allows (its setting `allowed-failures`, 3 by default); workers may join
    at any time. Private data reach the workers: use a cluster of your own.

    Attributes:
        address: of a scheduler, such as `tcp://host:8786`, or None.
        scheduler_file: that a scheduler wrote (`dask scheduler --scheduler-file`), or None. Without either, a cluster of
            processes of this machine is started, and ended with the run.
        jobs: workers of such a cluster; None for the number of cores.
        resources: that a worker must have, such as `{"GPU": 1}`.
        patience: seconds to wait for a scheduler, and for its first worker.
    """

    address: str | None = None
    scheduler_file: str | None = None
    resources: dict[str, float] | None = None
    patience: float = 60.0

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        if calls:
            with self.held(calls) as held:
                yield from held.results(calls)

    @contextmanager
    def held(self, calls: Sequence[Call]) -> Iterator[Executor]:
        """A client of the workers, which have the plan."""
        probe = Probe.of(calls[0].folder, calls[0].device)
        try:
            with self._client() as client:
                with _reached():
                    self._check(client, probe)
                    with sent():
                        freight = Freight.of(calls)
                    common = _shipped(client, freight.common)
                    scheduler = client.scheduler_info(n_workers=-1)["id"]
                yield _Held(
                    client=client, freight=freight, common=common, probe=probe, resources=self.resources, scheduler=scheduler
                )  # fmt: skip
        finally:
            probe.close()

    @contextmanager
    def _client(self) -> Iterator[Any]:
        with ExitStack() as kept:
            try:
                if self.address is not None or self.scheduler_file is not None:
                    place = distributed.Client(self.address, scheduler_file=self.scheduler_file, timeout=self.patience)
                else:
                    cluster = distributed.LocalCluster(
                        n_workers=self.workers, threads_per_worker=1, processes=True, memory_limit=0,
                        dashboard_address=None,
                    )  # fmt: skip
                    place = distributed.Client(kept.enter_context(cluster))
                client = kept.enter_context(place)
            # What a cluster raises at its start is its own affair: bare exceptions of a busy machine among them.
            except Exception as error:
                asked = self.address or self.scheduler_file
                where = "workers of Dask on this machine" if asked is None else f"a Dask scheduler at {asked}"
                raise PlanError(f"executor: expected {where}, got none ({error})") from error
            yield client

    def _check(self, client: Any, probe: Probe) -> None:
        """Refuse workers that differ before any work begins.

        Raises:
            PlanError: for such a worker, one with several threads, or where there is none.
        """
        try:
            client.wait_for_workers(1, timeout=self.patience)
        except TimeoutError as error:
            raise PlanError(f"executor: expected a worker within {self.patience:g} s, got none; start one") from error
        for worker in client.scheduler_info(n_workers=-1)["workers"].values():
            if worker["nthreads"] != 1:
                raise PlanError(
                    f"executor: expected workers with one thread each, got one with {worker['nthreads']}; start them with "
                    "--nthreads 1 and as many --nworkers as there are cores"
                )
        refuse(list(client.run(probe.difference).values()))


@dataclass(frozen=True, kw_only=True)
class _Held(Executor):
    """Workers that have the plan."""

    client: Any
    freight: Freight
    common: Any
    probe: Probe
    resources: dict[str, float] | None
    scheduler: str

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        with sent():
            parcels, arrays = self.freight.of_some(calls)
        with _reached():
            later = _shipped(self.client, arrays)
            futures = {
                self.client.submit(
                    _done, parcels[call.task.name], self.common, later, call.folder.resolve(), self.probe,
                    key=f"{self.probe.name}/{call.task.name}", pure=False, resources=self.resources,
                ): call.task
                for call in calls
            }  # fmt: skip
        for future in self._ended(list(futures)):
            yield _outcome(future, futures.pop(future))
            future.release()

    def _ended(self, futures: Sequence[Any]) -> Iterator[Any]:
        """The futures in the order of their ends.

        A scheduler that is told to end takes leave of its clients, whose futures then wait for ever; one that has begun anew
        at the same address knows nothing of them. So it is asked.
        """
        coming, asked = distributed.as_completed(futures), time.monotonic()
        while not coming.is_empty():
            if coming.has_ready():
                yield next(coming)
                asked = time.monotonic()
            elif time.monotonic() - asked < _ASKED:
                time.sleep(_LOOK)
            else:
                with _reached():
                    if self.client.scheduler_info(n_workers=-1)["id"] != self.scheduler:
                        raise ConnectionResetError("another scheduler answers")
                asked = time.monotonic()

    @property
    def width(self) -> int:
        """Number of workers that are there now."""
        with _reached():
            return max(1, len(self.client.scheduler_info(n_workers=-1)["workers"]))


@contextmanager
def _reached() -> Iterator[None]:
    """Words with the scheduler inside.

    Raises:
        PlanError: where it ends meanwhile, which cancels all tasks.
    """
    try:
        yield
    except (CancelledError, OSError) as error:
        raise PlanError(
            "executor: expected a Dask scheduler until the run ends, lost the connection to it; what is done is in the "
            "record, and the same command goes on, with a scheduler that runs or without --executor"
        ) from error


def _shipped(client: Any, content: Any) -> Any:
    """The future of what many tasks need: it goes to the scheduler once, and workers have it of each other.

    Scattered data would be lost with the worker that holds them, and sharing them out can wait for ever for one that has ended.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sending large graph")
        return client.submit(_itself, content, key=f"shipped-{secrets.token_hex(8)}", pure=False)


def _itself(content: Any) -> Any:
    return content


def _done(parcel: Parcel, common: Common, later: Arrays, folder: Path, probe: Probe) -> Sequence[Any]:
    # A worker that joined later was not asked before.
    refuse([probe.difference()])
    return worked(common.call(parcel, folder, later))[1]


def _outcome(future: Any, task: Task[Any]) -> Done:
    """The findings behind a future; those of a task that ended worker after worker are failed ones.

    Raises:
        PlanError: if a worker that joined differs, or the scheduler has ended.
        WriteError: if a worker cannot write.
    """
    with _reached():
        error = future.exception()
        if error is None:
            return task, future.result()
    if isinstance(error, PlanError | WriteError):
        raise error
    return task, failed(task, f"{type(error).__name__}: the workers that did this task ended")
