"""The room of layers: where the release of every scenario leaks, and which layers to protect first."""

from gradleak.audits.layers.audit import LayersAudit
from gradleak.audits.layers.profiles import LayerProfiles, findings_of_layers, findings_of_profiles, profile_layers
from gradleak.audits.layers.rows import Told

__all__ = ["LayerProfiles", "LayersAudit", "Told", "findings_of_layers", "findings_of_profiles", "profile_layers"]
