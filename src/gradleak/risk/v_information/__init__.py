"""What a family of attackers can tell from the gradients of a layer, in nats."""

from gradleak.risk.v_information.latent_information import LatentInformation
from gradleak.risk.v_information.original_information import OriginalInformation

__all__ = ["LatentInformation", "OriginalInformation"]
