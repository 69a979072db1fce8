"""Executors: where the tasks of a plan run. The parent alone writes the record; no number depends on the choice."""

from __future__ import annotations

import os
import platform
import re
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pickle import PicklingError

import torch
from threadpoolctl import threadpool_limits

from gradleak.auditing.device import device_of
from gradleak.auditing.parcel import SHARED, Parcels
from gradleak.auditing.whose_code import stated_versions
from gradleak.auditing.work import Call, Done, Shipped, failed, load_derivatives
from gradleak.core.process import in_processes, one_thread, processes_begun
from gradleak.results import Finding, InputError, PlanError
from gradleak.results.files import write_file

# Tasks that end one worker process after the other, with none done between: it is not for the tasks.
_LOST = 4
_TAKE_OUT = "take locks, open files and handles out of what it holds"


class NoProcessesError(PlanError):
    """Processes of this machine end before they have done anything."""

    def __init__(self, got: str, cause: BrokenProcessPool) -> None:
        """Say what was got in place of processes that live."""
        super().__init__(
            f"jobs: expected worker processes that live, got {got} ({_ends(cause)}); is there room in memory? --jobs 1 needs "
            "no other process"
        )


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

    Where a worker process ends (a signal, no memory, a crash of a library), those tasks that may have ended it are done again,
    each alone; one that ends its worker again has failed. Where a task cannot be sent to another process, this one does what
    is left.

    Attributes:
        jobs: how many; None for the number of cores; 1 for this process itself.
    """

    def results(self, calls: Sequence[Call]) -> Generator[Done]:
        """The tasks and their findings, in the order of their ends."""
        if self.workers == 1 or len(calls) < 2:
            yield from _here(calls)
            return
        left = {call.task.name: call for call in calls}
        try:
            yield from self._elsewhere(left)
        except PicklingError as error:
            said = _last_line(error.__cause__ or error)
            warnings.warn(
                f"this process does alone what is left, since a task cannot be sent to another one ({said}); {_TAKE_OUT}",
                stacklevel=2,
            )
            yield from _here(list(left.values()))

    def _elsewhere(self, left: dict[str, Call]) -> Generator[Done]:
        """Findings of other processes; their tasks are taken out of `left`."""
        site = next(iter(left.values())).site.for_another_process()
        parcels = Parcels(site.tensors())
        work = {name: replace(call, site=site).shipped(parcels) for name, call in left.items()}
        lost, alive = 0, False
        while left:
            suspects: list[str] = []
            try:
                with closing(self._apart([work[name] for name in left])) as results:
                    for name, found in results:
                        alive = True
                        yield left.pop(name).task, found
            except BrokenProcessPool:
                # Those that were under way are among the first.
                suspects = list(left)[: self.workers]
            for name in suspects:
                try:
                    [(_, found)], alive = self._apart([work[name]]), True
                except BrokenProcessPool as error:
                    lost += 1
                    if lost >= _LOST and not alive:
                        raise NoProcessesError(f"{lost} that ended, one after the other", error) from error
                    found = failed(
                        left[name].task, f"its worker process ended, twice ({_ends(error)}); is there room in memory?"
                    )
                yield left.pop(name).task, found

    def _apart(self, work: Sequence[Shipped]) -> Generator[tuple[str, Sequence[Finding]]]:
        with closing(in_processes(work, jobs=self.workers, ordered=False, shared=SHARED, apart=True)) as results:
            yield from results

    @contextmanager
    def begun(self, tasks: int) -> Iterator[None]:
        """The processes, which start beside the work inside."""
        try:
            with processes_begun(load_derivatives, jobs=min(self.workers, tasks), shared=SHARED):
                yield
        except BrokenProcessPool as error:
            raise NoProcessesError("one that ended at its start", error) from error

    @property
    def shares_memory(self) -> bool:
        """True for several processes."""
        return self.workers > 1


def _here(calls: Sequence[Call]) -> Generator[Done]:
    with closing(in_processes(calls, jobs=1)) as done:
        yield from done


def _last_line(error: BaseException) -> str:
    """Last line of a traceback of another process, in three quotes."""
    return str(error).strip(' "\n').rpartition("\n")[2]


def _ends(error: BrokenProcessPool) -> str:
    """Ends of worker processes, as joblib says them: `SIGKILL(-9)`."""
    found = re.search(r"\{(.+)\}", str(error))
    return found[1] if found else type(error).__name__


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


@contextmanager
def sent() -> Iterator[None]:
    """Pickling inside, for workers of a cluster.

    Raises:
        InputError: for what cannot be pickled.
    """
    try:
        yield
    # Of a user's own class anything may come.
    except (PicklingError, TypeError, AttributeError, ValueError, NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"executor: expected tasks that can be sent to workers, got one that cannot ({error}); {_TAKE_OUT}, or use "
            "--executor loky"
        ) from error


def worked(call: Call) -> Done:
    """The task of a call and its findings: on one thread, as everywhere."""
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
    return {**stated_versions(), "python": ".".join(platform.python_version_tuple()[:2])}
