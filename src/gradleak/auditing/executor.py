"""Executors: where the tasks of a plan run. The parent alone writes the record; no number depends on the choice."""

from __future__ import annotations

import os
import platform
import secrets
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from gradleak.auditing.device import device_of
from gradleak.auditing.parcel import SHARED, Parcels
from gradleak.auditing.whose_code import STATED
from gradleak.auditing.work import Call, Done, load_derivatives
from gradleak.core.process import in_processes, one_thread, processes_begun
from gradleak.results import InputError, PlanError
from gradleak.results.files import write_file
from gradleak.results.versions import version_of


class Executor(ABC):
    """Place where tasks run. Tasks go in, and their findings come out as they are done."""

    @abstractmethod
    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends; whoever stops early has to close the iterator.

        Args:
            calls: tasks of one plan, each with the site of the plan and the folder of the run.

        Raises:
            PlanError: before any work, if a worker has other versions or does not see the folder of the run.
        """

    @contextmanager
    def held(self, calls: Sequence[Call]) -> Iterator[Executor]:
        """This place, kept ready for several parts of these calls, one after the other.

        Args:
            calls: all tasks of the plan that may come.
        """
        yield self

    @contextmanager
    def begun(self, tasks: int) -> Iterator[None]:
        """This place, made ready beside the work inside, where that saves time; it is used after it.

        Args:
            tasks: how many will come, roughly.
        """
        yield

    @property
    def width(self) -> int:
        """Number of tasks that are done at a time, roughly."""
        return 1

    @property
    def shares_memory(self) -> bool:
        """True if killed runs can leave shared memory of this machine behind."""
        return False


@dataclass(frozen=True, kw_only=True)
class Cluster(Executor):
    """Several workers, as many as asked for or as there are cores.

    Attributes:
        jobs: how many are started on this machine; None for the number of cores.

    Raises:
        InputError: for fewer than one.
    """

    jobs: int | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise InputError(f"jobs: expected a whole number of at least 1, got {self.jobs}")

    @property
    def workers(self) -> int:
        """Number of workers that are started on this machine."""
        return self.jobs or os.cpu_count() or 1

    @property
    def width(self) -> int:
        """Number of workers."""
        return self.workers


@dataclass(frozen=True, kw_only=True)
class Loky(Cluster):
    """Processes of this machine, each with one thread; the default.

    Attributes:
        jobs: how many; None for the number of cores; 1 for this process itself.
    """

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        if self.workers == 1 or len(calls) < 2:
            with closing(in_processes(calls, jobs=1)) as done:
                yield from done
            return
        tasks = {call.task.name: call.task for call in calls}
        site = calls[0].site.for_another_process()
        parcels = Parcels(site.tensors())
        work = [replace(call, site=site).shipped(parcels) for call in calls]
        with closing(in_processes(work, jobs=self.workers, ordered=False, shared=SHARED)) as results:
            for name, found in results:
                yield tasks[name], found

    @contextmanager
    def begun(self, tasks: int) -> Iterator[None]:
        """The processes, which start beside the work inside."""
        with processes_begun(load_derivatives, jobs=min(self.workers, tasks), shared=SHARED):
            yield

    @property
    def shares_memory(self) -> bool:
        """True for several processes."""
        return self.workers > 1


@dataclass(frozen=True)
class Probe:
    """Traits that a worker has to have in common with the run: versions, and the folder with a file of a random name in it.

    Attributes:
        versions: by package.
        folder: of the run.
        name: of the file.
        device: that tasks compute on, None for any.
    """

    versions: Mapping[str, str | None]
    folder: Path
    name: str
    device: str | None = None

    @classmethod
    def of(cls, folder: Path, device: torch.device | None = None) -> Probe:
        """A probe for workers of this run; its file stands in the folder until `close`."""
        name = f".seen-{secrets.token_hex(8)}"
        write_file(folder / name, "seen")
        return cls(_versions(), folder.resolve(), name, None if device is None else str(device))

    def close(self) -> None:
        """Take the file away."""
        (self.folder / self.name).unlink(missing_ok=True)

    def difference(self) -> str | None:
        """Difference between this process, a worker, and the run, in words; None where there is none."""
        here = f"process {os.getpid()} on {platform.node()}"
        own = _versions()
        for package, version in self.versions.items():
            if own[package] != version:
                return (
                    f"{here} has {package} {own[package]}, this run has {version}: numbers can differ between versions"
                )
        if not (self.folder / self.name).is_file():
            return f"{here} does not see the folder {self.folder}: use one that all workers share"
        try:
            if self.device is not None:
                device_of(self.device)
        except InputError as refusal:
            return f"{here}: {refusal}"
        return None


def worked(call: Call) -> Done:
    """The task of a call and its findings, in a worker that is not ours: on one thread, as everywhere."""
    with one_thread(), threadpool_limits(limits=1):
        return call()


def refuse(differences: Sequence[str | None]) -> None:
    """Refuse workers that differ from this run.

    Raises:
        PlanError: with the first difference.
    """
    told = [each for each in differences if each is not None]
    if told:
        raise PlanError(f"executor: expected workers like this process; {told[0]}")


@cache
def _versions() -> Mapping[str, str | None]:
    stated = {name: version_of(name) for name in ("gradleak", *STATED.values())}
    return stated | {"python": ".".join(platform.python_version_tuple()[:2])}
