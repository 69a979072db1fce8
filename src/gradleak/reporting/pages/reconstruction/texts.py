"""The words of the page on reconstruction."""

from __future__ import annotations

from collections.abc import Mapping

WRONG_PAIRING = (
    "Claims on a batch come in no order and are paired with its examples one to one before they are scored. The same "
    "claims, each held against a wrong example, reach the errors below on average: an error near its own has found nothing "
    "about single examples, however small it looks."
)

ADVERSARIES = (
    "Who attacks a defended release either knows the defenses and their constants (adaptive), or takes the update for an "
    "undefended one (static); both start from the same guesses. The stronger counts: what keeps off the static adversary alone "
    "is no protection, and a refused attack is no evidence of safety. Error and blind baseline are those of the example of a "
    "batch that came out closest, which need not be the same one in every row."
)


LABEL_ROUTES: Mapping[str, str] = {
    "recovered": "recovered",
    "disclosed": "given",
    "optimized": "optimized",
}


def attack_name(attack: str, adversary: str) -> str:
    """The attack, and which adversary ran it, where there are two.

    Args:
        attack: its name.
        adversary: "adaptive", "static" or "".
    """
    return f"{attack}, {adversary}" if adversary else attack


__all__ = ["ADVERSARIES", "LABEL_ROUTES", "WRONG_PAIRING", "attack_name"]
