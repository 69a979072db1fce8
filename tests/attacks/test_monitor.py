"""The file that holds the state of a running attack: written when asked, atomic, never unpickled, gone in the end."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gradleak.attacks import Checkpoint, Monitor
from gradleak.attacks.attack import fingerprint
from gradleak.results import InputError


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path / "deep" / "state")
    assert checkpoint.load() is None
    tensors = {"a": torch.rand(3, 2, dtype=torch.float64), "empty": torch.zeros(0), "turned": torch.rand(4, 2).t()}
    checkpoint.save(tensors, {"stage": 1, "note": "µ"})
    found = checkpoint.load()
    assert found is not None
    assert found[1] == {"stage": 1, "note": "µ"}
    assert all(torch.equal(found[0][name], tensor) for name, tensor in tensors.items())
    assert [path.name for path in checkpoint.path.parent.iterdir()] == ["state"]
    checkpoint.remove()
    checkpoint.remove()
    assert not list(checkpoint.path.parent.iterdir())


def test_what_a_kill_left_half_written_is_removed_too(tmp_path: Path) -> None:
    checkpoint = Checkpoint(path=tmp_path / "state")
    (tmp_path / ".state.partial").write_bytes(b"half of a guess")
    assert checkpoint.load() is None
    checkpoint.remove()
    assert not list(tmp_path.iterdir())


def test_a_state_that_is_kept_outlives_its_attack(tmp_path: Path) -> None:
    for keep, left in ((False, []), (True, ["state", "state.1", "state.2"])):
        checkpoint = Checkpoint(path=tmp_path / "state", keep=keep)
        for number in range(3):
            part = Monitor(checkpoint=checkpoint).part(number).checkpoint
            assert part is not None
            part.save({"a": torch.ones(1)}, {"stage": 0})
            part.end()
        assert sorted(path.name for path in tmp_path.iterdir()) == left
    checkpoint.clear()
    checkpoint.clear()
    assert not list(tmp_path.iterdir())


class Evil:
    """A pickle that would leave a trace."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("evil"),))


@pytest.mark.parametrize("kind", ["torn", "pickle", "foreign", "text", "folder"])
def test_a_file_that_is_no_state_is_refused_in_words(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(path=tmp_path / "state")
    if kind == "torn":
        checkpoint.save({"a": torch.rand(100)}, {"stage": 0})
        checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:-50])
    elif kind == "pickle":
        checkpoint.path.write_bytes(pickle.dumps(Evil()))
    elif kind == "foreign":
        save_file({"a": torch.rand(2)}, checkpoint.path)
    elif kind == "text":
        save_file({"a": torch.rand(2)}, checkpoint.path, metadata={"gradleak": "[1, 2]"})
    else:
        checkpoint.path.mkdir()
    with pytest.raises(InputError, match=r"checkpoint state: expected the state of an attack, .* delete it to begin"):
        checkpoint.load()
    assert not Path("evil").exists()


def test_it_is_time_for_a_state_after_so_many_seconds(tmp_path: Path) -> None:
    assert not Monitor().due
    assert Monitor(checkpoint=Checkpoint(path=tmp_path / "a", seconds=0)).due
    slow = Monitor(checkpoint=Checkpoint(path=tmp_path / "a", seconds=3600))
    assert not slow.due
    with pytest.raises(InputError, match="at least 0"):
        Checkpoint(path=tmp_path, seconds=-1)


def test_a_fingerprint_tells_values_shapes_dtypes_and_settings_apart() -> None:
    a = torch.arange(4.0)
    prints = [
        fingerprint({"n": 1}, [a]),
        fingerprint({"n": 2}, [a]),
        fingerprint({"n": 1}, [a.reshape(2, 2)]),
        fingerprint({"n": 1}, [a.double()]),
        fingerprint({"n": 1}, [a + 1e-7]),
        fingerprint({"n": 1}, [a, a]),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint({"n": 1}, [a.clone()]) == prints[0]
