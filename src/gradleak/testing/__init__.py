"""Contract checks that authors of attacks, measures and defenses can run on their own classes."""

from gradleak.testing.contracts import check_attack, check_defense, check_measure, check_setting_measure

__all__ = ["check_attack", "check_defense", "check_measure", "check_setting_measure"]
