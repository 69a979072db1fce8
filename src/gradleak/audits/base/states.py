"""Place of an attack's state, from which a killed run goes on."""

from __future__ import annotations

from pathlib import Path

from gradleak.attacks import Checkpoint
from gradleak.audits.base.pictures import file_name
from gradleak.audits.base.site import Site

STATES = "checkpoints"


def state_of(site: Site, out: Path, name: str) -> Checkpoint | None:
    """Place of an attack's state, which outlives it: the run removes it when the findings are in the record.

    Args:
        site: says whether states are kept.
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    if site.checkpoint_seconds is None:
        return None
    return Checkpoint(path=state_path(out, name), seconds=site.checkpoint_seconds, keep=True)


def state_path(out: Path, name: str) -> Path:
    """The file of a state.

    Args:
        out: folder of the record.
        name: of the state; of an attack that of its item.
    """
    return out / STATES / f"{file_name(name)}.safetensors"
