"""A task of a plan at work, in this process or in another one: its findings, whatever goes wrong."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gradleak.auditing.device import lacks_double, on_device
from gradleak.auditing.parcel import Arrays, Parcel, Parcels
from gradleak.audits.base import Site, Task, file_name
from gradleak.core import derive_seed
from gradleak.core.randomness import global_generators
from gradleak.results import Finding, Outcome, Status, WriteError
from gradleak.results.files import make_folder, write_file

Done = tuple[Task[Any], Sequence[Finding]]


@dataclass(frozen=True)
class Call:
    """A task to be done, in this process or in another one, which gets the batches that it reads and not all of the plan.

    Attributes:
        task: what is done.
        site: of the plan.
        folder: of the run.
        device: where it computes; None for where the plan's tensors are.
    """

    task: Task[Any]
    site: Site
    folder: Path
    device: torch.device | None = None

    def __call__(self) -> Done:
        """The task and its findings, the same in this process and in another one."""
        return self.task, findings_of(self.task, self._narrow, self.folder, self.device)

    def __reduce__(self) -> tuple[Any, ...]:
        return Call, (self.task, self._narrow.for_another_process(), self.folder, self.device)

    def shipped(self, parcels: Parcels) -> Shipped:
        """The same for another process, which gets what many tasks hold once.

        Args:
            parcels: of the run.
        """
        return Shipped(self, parcels)

    @property
    def _narrow(self) -> Site:
        read = self.task.examples
        return self.site if read is None else self.site.only(read)


@dataclass(frozen=True)
class Shipped:
    """A task that goes to another process of this machine.

    Attributes:
        call: the task.
        parcels: of the run.
    """

    call: Call
    parcels: Parcels

    def __call__(self) -> tuple[str, Sequence[Finding]]:
        """The name of the task and its findings: its rows and weights need not come back."""
        return self.call.task.name, self.call()[1]

    def __reduce__(self) -> tuple[Any, ...]:
        parcel = self.parcels.pack(self.call)
        return _Arrived, (parcel, {name: self.parcels.arrays[name] for name in parcel.names})


@dataclass(frozen=True)
class _Arrived:
    """A task in the process that does it."""

    parcel: Parcel
    arrays: Arrays

    def __call__(self) -> tuple[str, Sequence[Finding]]:
        task, found = self.parcel.unpacked(self.arrays)()
        return task.name, found


@dataclass(frozen=True)
class Common:
    """Subject of all tasks of a plan, as workers on a cluster have it.

    Attributes:
        site: of the plan.
        arrays: the memories that tasks refer to.
        device: where tasks compute.
    """

    site: Site
    arrays: Arrays
    device: torch.device | None = None

    def call(self, parcel: Parcel, folder: Path, later: Arrays) -> Call:
        """The task in a parcel, in the folder of the run, with memories that came up later than these."""
        return Call(parcel.unpacked({**self.arrays, **later}), self.site, folder, self.device)


@dataclass(frozen=True)
class Freight:
    """Tasks of a plan for a cluster.

    Attributes:
        common: what goes to every worker, once.
        tasks: what goes to one, by name.
        parcels: of the run.
    """

    common: Common
    tasks: Mapping[str, Parcel]
    parcels: Parcels

    @classmethod
    def of(cls, calls: Sequence[Call]) -> Freight:
        """The freight of tasks of one plan."""
        parcels = Parcels()
        tasks = {call.task.name: parcels.pack(call.task) for call in calls}
        common = Common(calls[0].site.for_another_process(), parcels.arrays, calls[0].device)
        return cls(common, tasks, parcels)

    def of_some(self, calls: Sequence[Call]) -> tuple[Mapping[str, Parcel], Arrays]:
        """The parcels of some tasks by name, and memories that workers do not have yet: of tasks that came up on the way.

        Args:
            calls: tasks of the plan, or what followed from them.
        """
        later = Parcels(after=self.parcels)
        return {call.task.name: self.tasks.get(call.task.name) or later.pack(call.task) for call in calls}, later.arrays


def findings_of(task: Task[Any], site: Site, folder: Path, device: torch.device | None = None) -> Sequence[Finding]:
    """The findings of a task; whatever goes wrong becomes a failed finding, so that the rest of the run goes on.

    The text of an unknown error can hold private values, so that it goes into a file beside the record.

    Args:
        task: what is done.
        site: of the plan, or the part of it that the task reads.
        folder: of the run.
        device: where it computes; what needs float64 is done on the processor where the device has none, and says so.

    Raises:
        WriteError: if a file cannot be written: nothing else will be either, and the next run goes on from here.
    """
    try:
        # Nothing of ours draws from them, but an attack or a model of the user's may.
        with global_generators(derive_seed(site.seed, task.name, "global")):
            return list(_computed(task, site, folder, device))
    except WriteError:
        raise
    # Broad, since a model may raise anything: the traceback is kept, the finding is marked. One that calls `sys.exit` is no end
    # of the run either, and its exit code not that of the command.
    except (Exception, SystemExit, GeneratorExit) as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        kept = failure_file(task)
        make_folder(folder / kept.parent)
        write_file(folder / kept, traceback.format_exc())
        note = f"{type(error).__name__} in {Path(place.filename).name}, {place.name}; see {kept.as_posix()}"
        return failed(task, note)


def _computed(task: Task[Any], site: Site, folder: Path, device: torch.device | None) -> Iterable[Finding]:
    try:
        there, moved = on_device((task, site), device)
        # A piece of a task makes more than findings, for its parent.
        return on_device(list(there.run(moved, folder)), None if device is None else torch.device("cpu"))
    except TypeError as error:
        if device is None or not lacks_double(error, device):
            raise
    note = f"computed on the processor: {device.type} has no float64"
    found = task.run(site, folder)
    return [
        one.but(note="; ".join(filter(None, (one.note, note)))) if isinstance(one, Finding) else one for one in found
    ]


def load_derivatives() -> None:
    """Load what tasks need, in a new worker: half of it comes with this module, half with the first derivative of torch."""
    torch.func.grad(torch.sum)(torch.zeros(1))


def failed(task: Task[Any], note: str) -> list[Finding]:
    """The finding of a task that came to no end."""
    return [task.blank.but(status=Status.FAILED, outcome=Outcome.FAILED, note=note)]


def failure_file(task: Task[Any]) -> Path:
    """Place of the text of a task's failure, relative to the folder of the run."""
    return Path("failures") / f"{file_name(task.name)}.txt"


def clear_failure(folder: Path, task: Task[Any]) -> None:
    """Remove the text of an earlier failure of a task.

    Args:
        folder: of the run.
        task: that came to an end now.
    """
    file = folder / failure_file(task)
    if file.exists():
        file.unlink()
        if not any(file.parent.iterdir()):
            file.parent.rmdir()
