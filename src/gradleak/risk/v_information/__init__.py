"""Information that a family of attackers can tell from the gradients of a layer, in nats."""

from gradleak.risk.v_information.claim_error import ClaimError, CosineError, NormalizedError, StructuralDissimilarity
from gradleak.risk.v_information.latent_information import LatentInformation
from gradleak.risk.v_information.original_information import OriginalInformation
from gradleak.risk.v_information.target_information import TargetInformation

__all__ = [
    "ClaimError",
    "CosineError",
    "LatentInformation",
    "NormalizedError",
    "OriginalInformation",
    "StructuralDissimilarity",
    "TargetInformation",
]
