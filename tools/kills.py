"""Kills small audits at random moments and resumes them: `python -m tools.kills [--runs N] [--seed K] [--first N]`.

A case is one run of the command line, with one worker or two, that gets a signal in one of its phases. Each is resumed to
the end, and its record compared with that of an undisturbed run. Linux only: processes are looked up in /proc.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

PLAN = """
name = "kills"
seed = 3
pictures = true
checkpoint_seconds = 0

[model]
use = "tests.auditing.small_model:small_mlp"

[data]
use = "scikit_digits"
count = 2

[attacks.gauss_newton]
use = "GaussNewton"
max_steps = 10

[attacks.inverting_gradients]
use = "InvertingGradients"
iterations = 20

[measures.influence]
use = "InversionInfluence"

[[scenarios]]
name = "undefended"
attacks = { gauss_newton = "all", inverting_gradients = "all" }

[[scenarios]]
name = "noisy"
examples = [0]
defenses = [{ use = "GaussianNoise", std = 1e-6 }]
attacks = { inverting_gradients = [0] }
"""
LINE = "interrupted; run the same command again to continue\n"
# Seconds that workers may outlive the process, and that a process is waited for on a machine that does other things.
WORKERS_END = 2.0
PATIENCE = 600.0


class Sent(StrEnum):
    """Signal that a run gets; the last one kills the process that frees shared memory, too."""

    INT = "INT"
    TERM = "TERM"
    KILL = "KILL"
    KILL_GROUP = "KILL of the group"

    def send(self, number: int) -> None:
        """Send it to a process, or to its group."""
        if self is Sent.KILL_GROUP:
            os.killpg(number, signal.SIGKILL)
        else:
            os.kill(number, signal.Signals[f"SIG{self.value}"])

    @property
    def codes(self) -> tuple[int, ...]:
        """Exit codes that are right: for the first milliseconds, before any line of gradleak, the signal itself."""
        polite = {Sent.INT: (130, -signal.SIGINT), Sent.TERM: (143, -signal.SIGTERM)}
        return polite.get(self, (-signal.SIGKILL,))


class Phase(StrEnum):
    """Phase of a run in which the signal comes."""

    START = "start"
    PREFLIGHT = "preflight"
    WORK = "work"
    WRITING = "writing"
    FINISHING = "finishing"


@dataclass
class Case:
    """One run that was killed, and the faults that were seen.

    Attributes:
        sent: the signal.
        jobs: worker processes.
        phase: when it was sent.
        code: exit code of the run.
        ended: seconds from the signal to the end of the process.
        workers: the number of workers at the signal.
        gone: seconds from the end of the process to that of the last worker.
        number: of the process.
        faults: what was not as it should be, in words.
    """

    sent: Sent
    jobs: int
    phase: Phase
    code: int | None = None
    ended: float = 0.0
    workers: int = 0
    gone: float = 0.0
    number: int = 0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Undisturbed:
    """A run that nobody disturbs.

    Attributes:
        record: its canonical lines.
        loaded: seconds until its plan was read.
        begun: seconds until its record was begun.
        writes: how often the record was seen with another size.
        files: names of all files in its folder.
    """

    record: list[str]
    loaded: float
    begun: float
    writes: int
    files: frozenset[str]


def main() -> int:
    """Kill and resume; the exit status is 1 for any fault."""
    parser = argparse.ArgumentParser(prog="python -m tools.kills", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    cases = list(killed(range(asked.first, asked.first + asked.runs), seed=asked.seed, say=partial(print, flush=True)))
    print("\n".join(table(cases)))
    return 1 if any(case.faults for case in cases) else 0


def killed(numbers: Sequence[int], *, seed: int, say: Callable[[str], None]) -> Iterator[Case]:
    """Cases, each with a generator of its own, so that a case can be tried again alone.

    Args:
        numbers: of the cases; every signal comes with every number of workers.
        seed: of all of them.
        say: is told of each case.
    """
    # A shell that starts this in the background may have it ignore Ctrl-C, and its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    pairs = [(sent, jobs) for sent in Sent for jobs in (1, 2)]
    with tempfile.TemporaryDirectory() as place:
        plan = Path(place) / "plan.toml"
        plan.write_text(PLAN, encoding="utf-8")
        whole = _undisturbed(plan, Path(place) / "whole")
        for number in numbers:
            draw = random.Random(f"{seed} {number}")
            sent, jobs = pairs[number % len(pairs)]
            case = Case(sent=sent, jobs=jobs, phase=list(Phase)[number // len(pairs) % len(Phase)])
            out = Path(place) / str(number)
            _kill(case, plan, out, whole, draw)
            _resume(case, plan, out, whole)
            say(f"{number}: {case}")
            yield case


def table(cases: Sequence[Case]) -> Iterator[str]:
    """Counts by signal and number of workers, then the faults."""
    yield "signal, workers: runs; exit codes; ended after (median, most); workers alive; gone after (most); faults"
    for sent in Sent:
        for jobs in (1, 2):
            own = [case for case in cases if case.sent is sent and case.jobs == jobs]
            if not own:
                continue
            codes = ", ".join(
                f"{count} with {code}" for code, count in Counter(case.code for case in own).most_common()
            )
            ends, gone = [case.ended for case in own], max(case.gone for case in own)
            yield (
                f"{sent}, {jobs}: {len(own)} runs; {codes}; {statistics.median(ends):.2f} s, {max(ends):.2f} s; "
                f"{sum(case.workers for case in own)}; {gone:.2f} s; {sum(bool(case.faults) for case in own)}"
            )
    phases = Counter(case.phase for case in cases)
    yield "phases: " + ", ".join(f"{count} {phase}" for phase, count in phases.items())
    unequal = sum(any("record" in fault for fault in case.faults) for case in cases)
    yield f"records equal to that of an undisturbed run: {len(cases) - unequal} of {len(cases)}"
    for fault, count in Counter(fault for case in cases for fault in case.faults).items():
        yield f"fault, {count} times: {fault}"


def _start(plan: Path, out: Path, jobs: int) -> tuple[subprocess.Popen[bytes], Path]:
    """The process of a run, leader of its own group, and the file of what it says."""
    said = out.with_suffix(".said")
    command = [sys.executable, "-m", "gradleak", "audit", str(plan), "--out", str(out), "--jobs", str(jobs)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with said.open("wb") as file:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=file, env=environment, start_new_session=True
        )
    return process, said


def _undisturbed(plan: Path, out: Path) -> Undisturbed:
    from gradleak.results import Record

    began = time.monotonic()
    process, said = _start(plan, out, 1)
    _until(process, lambda: said.stat().st_size > 0)
    loaded = time.monotonic() - began
    record = out / "record.jsonl"
    _until(process, record.exists)
    begun = time.monotonic() - began
    sizes: set[int] = set()
    while process.poll() is None:
        sizes.add(record.stat().st_size)
        time.sleep(0.003)
    if process.wait() != 0:
        raise RuntimeError(f"expected an undisturbed run to end with 0, got {process.returncode}: {said.read_text()}")
    return Undisturbed(
        record=Record.load(out).canonical(), loaded=loaded, begun=begun, writes=len(sizes), files=_files(out)
    )


def _kill(case: Case, plan: Path, out: Path, whole: Undisturbed, draw: random.Random) -> None:
    """Start a run, send the signal in the phase of the case, and look what is left."""
    process, said = _start(plan, out, case.jobs)
    case.number = process.pid
    record = out / "record.jsonl"
    seen: set[int] = set()

    def writes(count: int) -> bool:
        if record.exists():
            seen.add(record.stat().st_size)
        return len(seen) >= count

    share = draw.random()
    if case.phase is Phase.START:
        time.sleep(share * whole.loaded)
    elif case.phase is Phase.PREFLIGHT:
        _until(process, lambda: said.stat().st_size > 0)
        time.sleep(share * (whole.begun - whole.loaded))
    elif case.phase is Phase.WORK:
        count = draw.randint(1, whole.writes - 1)
        _until(process, lambda: writes(count))
        time.sleep(share * 0.5)
    elif case.phase is Phase.WRITING:
        count = draw.randint(1, whole.writes)
        _until(process, lambda: writes(count))
    else:
        _until(process, lambda: record.exists() and b'"type": "verdict"' in record.read_bytes())
        time.sleep(share)
    workers = _workers(process.pid)
    case.workers = len(workers)
    began = time.monotonic()
    case.sent.send(process.pid)
    try:
        case.code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        case.faults.append("the process goes on")
    case.ended = time.monotonic() - began
    while (left := workers & _workers(process.pid)) and time.monotonic() < began + PATIENCE:
        time.sleep(0.01)
    case.gone = time.monotonic() - began - case.ended
    if left or case.gone > WORKERS_END:
        case.faults.append(f"workers live for more than {WORKERS_END:g} s")
    # The process that frees shared memory needs a moment more.
    _until(None, lambda: not _group(process.pid), patience=WORKERS_END)
    if others := _group(process.pid):
        case.faults.append(f"{len(others)} processes are left")
        os.killpg(process.pid, signal.SIGKILL)
    if case.sent is not Sent.KILL_GROUP and _shared(process.pid):
        case.faults.append("shared memory is left")
    over = case.code == 0 and case.phase is Phase.FINISHING
    if case.code not in case.sent.codes and not over:
        case.faults.append(f"exit code {case.code}")
    words = said.read_text(encoding="utf-8", errors="replace")
    if case.code in (130, 143) and (words.count(LINE) != 1 or not words.endswith(LINE)):
        case.faults.append("no line that says how to go on")
    if "Traceback" in words and case.code != -signal.SIGINT:
        case.faults.append("a traceback")


def _resume(case: Case, plan: Path, out: Path, whole: Undisturbed) -> None:
    """Run the plan again, in this process since importing takes most of the time, and compare."""
    from gradleak.auditing import load_plan, run_plan

    record = run_plan(load_plan(plan), out, jobs=1)
    if record.canonical() != whole.record:
        case.faults.append("another record than that of an undisturbed run")
    if _shared(case.number):
        case.faults.append("shared memory is left after the next run")
    if further := _files(out) - whole.files:
        case.faults.append(f"files that an undisturbed run does not leave: {sorted(further)}")


def _until(process: subprocess.Popen[bytes] | None, reached: Callable[[], bool], *, patience: float = PATIENCE) -> None:
    """Wait until something is reached, or a process has ended."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and not reached() and (process is None or process.poll() is None):
        time.sleep(0.003)


def _group(leader: int) -> dict[int, str]:
    """Processes of a session that are alive, with their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            state, *fields = (
                (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdecimal() else ["Z"]
            )
            if state != "Z" and int(fields[2]) == leader:
                found[int(entry.name)] = (entry / "cmdline").read_text()
        except (OSError, ValueError):
            continue
    return found


def _workers(leader: int) -> set[int]:
    """Worker processes of a run: all but the run itself and those that free what is shared."""
    return {number for number, line in _group(leader).items() if number != leader and "resource_tracker" not in line}


def _shared(number: int) -> list[str]:
    """Names with the number of a process in the folders that joblib and torch share memory in."""
    places = {Path("/dev/shm"), Path(tempfile.gettempdir())}
    return [entry.name for place in places for entry in place.iterdir() if _names(entry.name, number)]


def _names(name: str, number: int) -> bool:
    return str(number) in name.replace("_", "-").split("-") and name.startswith(("sem.", "joblib", "torch"))


def _files(folder: Path) -> frozenset[str]:
    return frozenset(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
