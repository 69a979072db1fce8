"""Data of many owners: rows, their columns and users, how they are parted, and how they are sampled."""

from gradleak.data.column import Column, ColumnKind, Encoding, raw_domain, scaled_domain
from gradleak.data.population import PoissonDraw, Population, poisson_release, poisson_sample, rows_of
from gradleak.data.split import Split, without_rows_of
from gradleak.data.table import Table

__all__ = [
    "Column",
    "ColumnKind",
    "Encoding",
    "PoissonDraw",
    "Population",
    "Split",
    "Table",
    "poisson_release",
    "poisson_sample",
    "raw_domain",
    "rows_of",
    "scaled_domain",
    "without_rows_of",
]
