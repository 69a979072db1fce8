"""Numbered items of the five papers, each with the value of a study, or the test, that decides whether it holds here."""

from studies.items.fang_2024 import FANG
from studies.items.hong_2024 import HONG
from studies.items.item import Checked, Item, Paper, Reading, Run, State, judge
from studies.items.kept import Kept, keep, read, records
from studies.items.li_2024 import LI
from studies.items.mo_2021 import MO
from studies.items.page import listing, page
from studies.items.zhang_2023 import ZHANG

PAPERS = (ZHANG, FANG, LI, HONG, MO)

__all__ = [
    "PAPERS",
    "Checked",
    "Item",
    "Kept",
    "Paper",
    "Reading",
    "Run",
    "State",
    "judge",
    "keep",
    "listing",
    "page",
    "read",
    "records",
]
