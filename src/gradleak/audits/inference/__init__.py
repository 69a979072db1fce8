"""The room of inference games: what adversaries infer from the updates of every scenario."""

from gradleak.audits.inference.audit import InferenceAudit
from gradleak.audits.inference.played import finding_of_game, findings_of_games

__all__ = ["InferenceAudit", "finding_of_game", "findings_of_games"]
