from __future__ import annotations

import pytest

from gradleak import results
from gradleak.results import Citation

CITATIONS = [value for value in vars(results).values() if isinstance(value, Citation)]


@pytest.mark.parametrize("citation", CITATIONS, ids=lambda citation: citation.key)
def test_a_citation_prints_as_line_and_as_bibtex(citation: Citation) -> None:
    line = citation.text()
    assert "\n" not in line
    assert line.startswith(citation.authors)
    assert f"({citation.year})" in line
    entry = citation.bibtex()
    assert entry.startswith("@inproceedings{" + citation.key + ",\n")
    assert entry.endswith("\n}")
    assert entry.count("{") == entry.count("}")


def test_keys_are_unique() -> None:
    assert len({citation.key for citation in CITATIONS}) == len(CITATIONS) >= 10
