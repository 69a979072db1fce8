"""Error that blind guesses reach by luck on a batch, against which a small error is held."""

from __future__ import annotations

from gradleak.audits.base.site import Site, domain_of
from gradleak.core import Batch, HonestButCurious, derive_generator
from gradleak.results import Score
from gradleak.scoring import chance_pixel_rmse


def luck(site: Site, batch: Batch, name: str) -> Score | None:
    """Error that blind guesses reach by luck on a batch of few entries, None where that is nothing.

    Args:
        site: its public rows are among the guesses.
        batch: the truth.
        name: of the batch in seeds.
    """
    public = site.threat.public if isinstance(site.threat, HonestButCurious) else None
    rows = None if public is None else public.inputs
    generator = derive_generator(site.seed, "chance", name)
    return chance_pixel_rmse(
        batch,
        domain_of(batch),
        rows,
        generator=generator,
        within=site.thresholds.pixel_rmse,
        share=site.thresholds.baseline_ratio,
    )
