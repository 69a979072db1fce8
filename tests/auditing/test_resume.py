"""A run goes on with its own record alone: same code, same data, same versions, and nothing edited."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradleak.attacks import InvertingGradients
from gradleak.auditing import Plan, build_plan, cautions, run_plan
from gradleak.auditing.header import Behavior, DataKey
from gradleak.core import Reconstruction
from gradleak.results import PlanError, Record, WriteError
from gradleak.results.record_lines import sealed
from gradleak.results.score import jsonable

QUICK_PLAN = """
name = "quick"
seed = 3

[model]
use = "tests.auditing.test_resume:model"

[data]
use = "scikit_digits"
count = 2

[attacks.own]
use = "tests.auditing.test_resume:Own"
iterations = 2

[controls]
positive = false
negative = false

[[scenarios]]
name = "undefended"
attacks = { own = [0] }

[[scenarios]]
name = "signs"
examples = [0]
defenses = [{ use = "Sign" }]
attacks = {}
"""


class Net(torch.nn.Module):
    """A network whose scale stands where no digest looks."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.weight.fill_(0.1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x.flatten(1)) * float(os.environ.get("GRADLEAK_TEST_SCALE", "1"))


def model() -> Net:
    return Net()


@dataclass(frozen=True, kw_only=True)
class Own(InvertingGradients):
    """An attack that fails where the environment says so."""

    def _recover_many(self, *given: Any) -> list[Reconstruction]:
        if os.environ.get("GRADLEAK_TEST_FAILS"):
            raise ValueError("on purpose")
        return super()._recover_many(*given)


def quick_plan() -> Plan:
    return build_plan(tomllib.loads(QUICK_PLAN), folder=Path())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("quick") / "out"
    run_plan(quick_plan(), out, jobs=1)
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "out"))


def again(folder: Path, plan: Plan | None = None) -> list[str]:
    """What a further run says."""
    said: list[str] = []
    run_plan(plan or quick_plan(), folder, jobs=1, progress=lambda done, every, what: said.append(what))
    return said


def refused(folder: Path, message: str, plan: Plan | None = None) -> None:
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    with pytest.raises(PlanError, match=message) as refusal:
        again(folder, plan)
    assert "\n" not in str(refusal.value)
    assert "nothing was written" in str(refusal.value)
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


def edit_header(folder: Path, change: Callable[[dict[str, Any]], None], *, reseal: bool) -> None:
    file = folder / "record.jsonl"
    first, *rest = file.read_text().splitlines(keepends=True)
    header = json.loads(first)
    change(header)
    file.write_text(json.dumps(sealed(header) if reseal else header) + "\n" + "".join(rest))


def test_nothing_is_said_of_a_record_that_is_whole(out: Path) -> None:
    before = (out / "record.jsonl").read_bytes()
    assert again(out) == ["resumed"]
    assert (out / "record.jsonl").read_bytes() == before


def test_a_record_without_the_key_of_its_data_is_refused(out: Path) -> None:
    (out / ".private-data").unlink()
    refused(out, r"\.private-data: expected the key .* got no such file")


@pytest.mark.parametrize("content", [b"", b'{"key": 1, "hash": "a"}', b"[" * 5000])
def test_a_damaged_key_is_refused(out: Path, content: bytes) -> None:
    (out / ".private-data").write_bytes(content)
    refused(out, r"\.private-data: expected the key of the private data .* got something else")


def test_the_key_of_another_run_is_refused(out: Path, tmp_path: Path) -> None:
    plan = quick_plan()
    DataKey.of(tmp_path).keep(tmp_path, plan.private())
    shutil.copy(tmp_path / ".private-data", out / ".private-data")
    refused(out, "do not belong together")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda header: header["thresholds"].update(pixel_rmse=0.9),
            "thresholds pixel_rmse 0.9, this run has pixel_rmse 0.1",
        ),
        (lambda header: header["groups"].pop(), "groups of number"),
        (
            lambda header: header["versions"].update(torch="1.0"),
            "versions torch '1.0'.*numbers can differ between versions",
        ),
        (lambda header: header.update(seed=4), "seed 4, this run has 3"),
        (lambda header: header.update(name="mine"), "do not belong together"),
        (lambda header: header["behavior"].update(seeded={}), "do not belong together"),
        (lambda header: header.pop("keyed_checksum"), "do not belong together"),
    ],
)
def test_an_edited_header_is_noticed(out: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    edit_header(out, change, reseal=True)
    refused(out, message)


def test_a_damaged_header_is_said_and_written_anew(out: Path) -> None:
    record = Record.load(out)
    edit_header(out, lambda header: header.update(started="later"), reseal=False)
    assert "the header is not what its checksum says" in again(out)[0]
    assert again(out) == ["resumed"]
    assert Record.load(out).canonical() == record.canonical()
    edit_header(out, lambda header: header.update(plan_digest="0"), reseal=False)
    refused(out, "not what its checksum says, so that nobody can tell whether it is of this run")


def test_a_damaged_line_is_said_and_computed_anew(out: Path) -> None:
    file, record = out / "record.jsonl", Record.load(out)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:2], lines[2].replace(b"0.", b"7.", 1), *lines[3:]]))
    assert "line 3 is not what its checksum says" in again(out)[0]
    assert Record.load(out).canonical() == record.canonical()


def test_a_kill_before_the_key_was_kept_costs_nothing(out: Path) -> None:
    file = out / "record.jsonl"
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    (out / ".private-data").unlink()
    assert again(out)[0] == "started"
    assert again(out) == ["resumed"]


def test_code_that_no_digest_sees_is_noticed_at_the_probes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = quick_plan().digest()
    monkeypatch.setenv("GRADLEAK_TEST_SCALE", "1.01")
    assert quick_plan().digest() == digest
    refused(out, r"compute other values than when .* \(output: 0\.\d+ apart, .* at most 0.001 expected\)")


def test_rounding_is_no_other_behavior(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_TEST_SCALE", "1.000001")
    assert again(out) == ["resumed"]


def test_what_cannot_be_read_is_said_before_and_refused_after(out: Path) -> None:
    plan = quick_plan()
    object.__setattr__(plan.site.objective, "_loss", Held(iter(range(3)), (number for number in range(3))))
    (caution,) = cautions(plan)
    assert caution.startswith("mind the code: model and loss._loss.more (builtins.generator) cannot be read")
    fresh = out.with_name("fresh")
    run_plan(plan, fresh, jobs=1)
    refused(fresh, r"model and loss\._loss\.more \(builtins\.generator\) cannot be read", plan)


@dataclass
class Held:
    """A loss that holds what cannot be read."""

    steps: Iterator[int]
    more: Any

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)


def test_probes_are_compared_not_hashed_and_private_ones_hidden(out: Path) -> None:
    plan, key, header = quick_plan(), DataKey.of(out), Record.load(out).run["behavior"]
    found = Behavior.of(plan)
    assert found.difference(header, key) is None
    assert set(found.seeded) == {"output", "loss", "mean of undefended", "mean of signs"}
    assert set(found.private) == {f"rows 0: {name}" for name in found.seeded} | {"rows 1: output", "rows 1: loss"}
    moved = replace(found, private={name: [2 * number for number in every] for name, every in found.private.items()})
    assert str(moved.difference(header, key)).startswith("rows 0: output: 0.")
    assert replace(found, seeded={}).difference(header, key) == (
        "output: there only once, relative difference of at most 0.001 expected"
    )
    for wrong in ({}, None, {**header, "hidden": {"a": "zz"}}, {**header, "seeded": 5}):
        assert found.difference(wrong, key) == "the header holds no proper values"
    # Nothing of the private values is left without the key.
    hidden = header["hidden"]["rows 0: output"]
    assert key.shown(hidden, f"{header['nonce']} rows 0: output") == found.private["rows 0: output"]
    assert (
        DataKey(key="other", hash=None).shown(hidden, f"{header['nonce']} rows 0: output")
        != found.private["rows 0: output"]
    )
    other = found.to_dict(key, "another nonce")["hidden"]["rows 0: output"]
    assert len(other) == len(hidden)
    assert other != hidden


def test_a_map_that_jumps_is_given_more(out: Path) -> None:
    tolerance = Behavior.of(quick_plan()).tolerance
    assert tolerance["mean of undefended"] == 1e-3
    assert tolerance["mean of signs"] >= 1e-3


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_values_that_are_no_numbers_are_compared_too(value: str) -> None:
    key = DataKey(key="k", hash=None)
    plain = Behavior(seeded={"loss": [1.0, 2.0]}, private={"rows 0: loss": [3.0]}, tolerance={"loss": 1e-3})
    odd = replace(plain, seeded={"loss": [1.0, float(value)]}, private={"rows 0: loss": [float(value)]})
    stored = {name: jsonable(one.to_dict(key, "n")) for name, one in (("plain", plain), ("odd", odd))}
    assert odd.difference(stored["odd"], key) is plain.difference(stored["plain"], key) is None
    assert str(odd.difference(stored["plain"], key)).startswith("loss: inf apart")
    assert str(plain.difference(stored["odd"], key)).startswith("loss: inf apart")


def test_rows_of_a_game_count_with_all_that_they_hold(tmp_path: Path) -> None:
    from gradleak.auditing.fingerprint import fingerprint
    from gradleak.audits.base.rows import held
    from gradleak.data import Population

    rows = Population(
        name="p",
        inputs=torch.ones(4, 2),
        targets=torch.zeros(4),
        sensitive=torch.tensor([0, 1, 0, 1]),
        values=("a", "b"),
    )
    others = [
        replace(rows, users=torch.arange(4)),
        replace(rows, side=torch.ones(4, 1)),
        replace(rows, values=("a", "c")),
    ]
    assert len({fingerprint(held(one)) for one in (rows, *others)}) == 4


@pytest.mark.parametrize("umask", [0o000, 0o277])
def test_folders_and_files_are_for_their_owner_alone(tmp_path: Path, umask: int) -> None:
    plan = quick_plan()
    plan = replace(plan, site=replace(plan.site, pictures=True, save_updates=True, checkpoint_seconds=0.0))
    before = os.umask(umask)
    try:
        record = run_plan(plan, tmp_path / "runs" / "out", jobs=1)
        from gradleak.reporting import write_html, write_json, write_markdown

        for write in (write_html, write_json, write_markdown):
            write(record, tmp_path / "runs" / "out" / f"report.{write.__name__}")
    finally:
        os.umask(before)
    found = list((tmp_path / "runs").rglob("*"))
    names = {file.relative_to(tmp_path / "runs/out").parts[0] for file in found if file.name != "out"}
    assert names > {"record.jsonl", ".record.jsonl.lock", ".private-data", "pictures", "updates", "report.write_html"}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in found if path.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "runs", *found) if path.is_dir()} == {0o700}


def test_a_folder_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    run_plan(quick_plan(), tmp_path, jobs=1)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_the_text_of_a_failure_goes_when_its_item_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADLEAK_TEST_FAILS", "1")
    assert [one.status for one in run_plan(quick_plan(), tmp_path, jobs=1).findings].count("failed") == 1
    (text,) = (tmp_path / "failures").iterdir()
    assert "on purpose" in text.read_text()
    assert stat.S_IMODE(text.stat().st_mode) == 0o600
    monkeypatch.delenv("GRADLEAK_TEST_FAILS")
    assert "failed" not in [one.status for one in run_plan(quick_plan(), tmp_path, jobs=1).findings]
    assert not (tmp_path / "failures").exists()


def test_files_that_a_kill_left_unfinished_go_with_the_next_run(finished: Path, tmp_path: Path) -> None:
    out = shutil.copytree(finished, tmp_path / "out")
    for name in (".report.json.partial", "..process.partial", ".report.html.partial"):
        (out / name).write_text("half")
    (out / "partial.txt").write_text("a user's own")
    run_plan(quick_plan(), out, jobs=1)
    assert {file.name for file in out.iterdir()} == {file.name for file in finished.iterdir()} | {"partial.txt"}


@pytest.mark.parametrize("room", [0, 9_000])
def test_a_full_disk_names_the_file_and_the_next_run_goes_on(finished: Path, tmp_path: Path, room: int) -> None:
    """The system refuses every file above so many bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = tmp_path / "out"
    plan = quick_plan()
    plan = replace(plan, site=replace(plan.site, pictures=True))
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(WriteError, match=r"/out/[^ ]*: cannot be written: File too large; make room") as refusal:
            run_plan(plan, out, jobs=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "\n" not in str(refusal.value)
    assert not list(out.rglob("*.partial"))
    record = run_plan(plan, out, jobs=1)
    assert record.complete
    assert (record.damaged, record.verdicts) == (0, Record.load(finished).verdicts)
