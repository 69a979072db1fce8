"""Text is no truth value: "false" would count as true, and disclose what it was to withhold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradleak as gl
from gradleak.attacks.inversion import Adam, Inversion, Latents, Pixels
from gradleak.auditing import Controls
from gradleak.results import InputError


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (gl.HonestButCurious, ("batch_size", "domain", "targets", "defenses", "statistics", "masks")),
        (gl.AuditOptions, ("pictures", "quiet")),
        (Controls, ("positive", "negative")),
        (gl.GaussNewton, ("box", "free_gates")),
        (Inversion, ("compile",)),
        (Pixels, ("box",)),
        (Latents, ("tanh",)),
        (Adam, ("signed",)),
    ],
)
@pytest.mark.parametrize("given", ["false", 0, None])
def test_what_is_no_truth_value_is_refused(make: Callable[..., Any], fields: tuple[str, ...], given: object) -> None:
    for name in fields:
        with pytest.raises(InputError, match=rf"\.{name}: expected True or False, got {given!r}"):
            make(**{name: given})


def test_public_data_is_a_batch() -> None:
    with pytest.raises(InputError, match=r"HonestButCurious\.public: expected a Batch or None, got 'rows'"):
        gl.HonestButCurious(public="rows")
