"""What an update says of a picture out of a generator, in words."""

from __future__ import annotations

from collections.abc import Mapping

SUPPORT: Mapping[str, str] = {
    "supported": "borne out by the update",
    "contradicted": "invented, in part at least, by the prior",
    "undecided": "may be invented by the prior",
}

# The keys are those of the record: `details.support` of an attack behind a generator.
SUPPORT_MEANINGS: Mapping[str, str] = {
    "supported": "Refined by the update alone, without the generator, the picture hardly moved, and the update was explained "
    "better: what it shows comes from the update.",
    "contradicted": "The update leads to another picture, or any picture of the generator explains it as well: this one is "
    "invented, in part at least. That is said of the picture and is no sign that the update gives nothing away: see what "
    "the refined picture reached.",
    "undecided": "The update could not be asked: the picture may be true or invented. This is no sign for it.",
    "refined": "The claim of an attack behind a generator, refined by the update alone, without generator and priors: a claim "
    "of its own, which audits score beside the one that it began with.",
}

__all__ = ["SUPPORT", "SUPPORT_MEANINGS"]
