"""Generators of pages of the documentation, run in the root of a checkout."""
