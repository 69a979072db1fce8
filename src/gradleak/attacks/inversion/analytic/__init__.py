"""Attacks that solve for what the first linear layer was given, at the cost of one gradient."""

from gradleak.attacks.inversion.analytic.april import APRIL
from gradleak.attacks.inversion.analytic.cocktail_party import CocktailParty
from gradleak.attacks.inversion.analytic.linear_rows import LinearRows

__all__ = ["APRIL", "CocktailParty", "LinearRows"]
