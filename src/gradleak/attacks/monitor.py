"""Progress of a running attack, and the place of its state, so that a killed run goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gradleak.results import InputError
from gradleak.results.files import make_folder, partial_of, write_file

Progress = Callable[[int, int, float], None]
"""Called now and then with (iterations done, iterations planned, best matching loss)."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A file with the state of a running attack.

    It holds the adversary's guesses, which may be private data: it is written only where the caller asks for it, and
    removed when the attack ends, or, with `keep`, when the caller `clear`s it. It is a safetensors file, never a pickle,
    and replaced atomically, so that a kill at any moment leaves the state before or after.

    Attributes:
        path: of the file.
        seconds: at least so long between two states.
        keep: whether the finished state stays until the caller has put the claim in a safe place; an attack that finds it
            claims the same at once, without a further step.

    Raises:
        InputError: for a negative time.
    """

    path: Path
    seconds: float = 60.0
    keep: bool = False

    def __post_init__(self) -> None:
        """Check the time; a path may come as text."""
        object.__setattr__(self, "path", Path(self.path))
        if not self.seconds >= 0:
            raise InputError(f"Checkpoint.seconds: expected a number of at least 0, got {self.seconds}")

    def part(self, number: int) -> Checkpoint:
        """The file of one lockstep group of an attack."""
        return self if number == 0 else replace(self, path=self.path.with_name(f"{self.path.name}.{number}"))

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one state."""
        make_folder(self.path.parent)
        state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        # safetensors' own save_file writes through a file of a random name, which a kill would leave behind for good.
        write_file(self.path, save(state, metadata={"gradleak": json.dumps(facts)}))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The last state, or None if there is none.

        Raises:
            InputError: if the file is no state of an attack.
        """
        if not self.path.exists():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["gradleak"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        except (SafetensorError, KeyError, json.JSONDecodeError, OSError) as error:
            raise self._unreadable(type(error).__name__) from error
        if not isinstance(facts, dict):
            raise self._unreadable("no facts")
        return tensors, facts

    def remove(self) -> None:
        """Delete the file; nothing happens where there is none."""
        partial_of(self.path).unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    def end(self) -> None:
        """End the attack: delete the file, unless it is to be kept."""
        if not self.keep:
            self.remove()

    def clear(self) -> None:
        """Delete the files of all lockstep groups of the attack; nothing happens where there are none."""
        self.remove()
        number = 1
        while (part := self.part(number)).path.exists() or partial_of(part.path).exists():
            part.remove()
            number += 1

    def _unreadable(self, reason: str) -> InputError:
        return InputError(
            f"checkpoint {self.path.name}: expected the state of an attack, got a file that cannot be read as one "
            f"({reason}); delete it to begin anew"
        )


@dataclass(kw_only=True)
class Monitor:
    """Progress and checkpoint of one call of an attack; calling it reports progress.

    Attributes:
        progress: told how far the attack is, or None.
        checkpoint: where states go, or None.
    """

    progress: Progress | None = None
    checkpoint: Checkpoint | None = None
    _saved: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, planned: int, loss: float) -> None:
        """Report (iterations done, planned, best matching loss)."""
        if self.progress is not None:
            self.progress(done, planned, loss)

    def part(self, number: int) -> Monitor:
        """The monitor of one lockstep group."""
        checkpoint = None if self.checkpoint is None else self.checkpoint.part(number)
        return Monitor(progress=self.progress, checkpoint=checkpoint)

    @property
    def due(self) -> bool:
        """True if it is time for a state."""
        return self.checkpoint is not None and time.monotonic() - self._saved >= self.checkpoint.seconds

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Write one state."""
        assert self.checkpoint is not None
        self.checkpoint.save(tensors, facts)
        self._saved = time.monotonic()


def fingerprint(description: object, tensors: Iterable[Tensor]) -> str:
    """A hash of settings and tensors: a state goes on only in the attack that wrote it."""
    digest = hashlib.sha256(json.dumps(description, sort_keys=True, default=str).encode())
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
