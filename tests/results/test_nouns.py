from __future__ import annotations

from gradleak.core import DomainKind
from gradleak.results import entries_noun, entry_noun, error_name
from gradleak.results.errors import ENTRIES


def test_every_kind_of_data_has_a_noun() -> None:
    assert {kind.value for kind in DomainKind} <= set(ENTRIES)
    assert error_name("image") == "pixel RMSE"


def test_what_has_no_kind_is_an_entry() -> None:
    assert (entry_noun(None), entries_noun("tensor"), error_name(None)) == ("entry", "entries", "entry RMSE")
