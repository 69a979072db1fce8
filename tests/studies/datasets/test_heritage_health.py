"""Heritage Health in its public form, with made-up members."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gradleak.results import InputError
from studies.datasets import heritage_health, heritage_health_table

CLAIMS = """MemberID,ProviderID,Vendor,PCP,Year,Specialty,PlaceSvc,PayDelay,LengthOfStay,DSFS,PrimaryConditionGroup,\
CharlsonIndex,ProcedureGroup,SupLOS
7,10,1,5,Y1,Surgery,Office,28,,8-9 months,NEUMENT,0,MED,0
7,11,1,5,Y2,Internal,Office,50,,7-8 months,NEUMENT,1-2,,0
3,10,,5,Y1,Surgery,Home,28,,0-1 month,,0,EM,0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Members.csv").write_text("MemberID,AgeAtFirstClaim,Sex\n3,,\n7,30-39,M\n9,80+,F\n")
    (tmp_path / "Claims.csv").write_text(CLAIMS)
    return tmp_path


def test_claims_are_counted_by_member(folder: Path) -> None:
    table = heritage_health_table(folder)
    # Member 9 has no claim.
    assert table.size == 2
    counts = {
        name: table.cells[name].tolist() for name in ("claims", "providers", "vendors", "specialties", "procedures")
    }
    assert counts == {
        "claims": [2, 1],
        "providers": [2, 1],
        "vendors": [1, 0],
        "specialties": [2, 1],
        "procedures": [1, 1],
    }
    people = heritage_health(folder)
    assert people.targets.tolist() == [1, 0]
    assert people.sensitive.tolist() == [1, 2]
    assert tuple(people.values) == ("F", "M", "unknown")
    assert people.inputs.shape == (2, 18)
    assert people.inputs[0, :10].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert float(people.inputs[0, 10]) == pytest.approx(math.log(3) / math.log(1001))


def test_a_year_and_the_attribute(folder: Path) -> None:
    people = heritage_health(folder, keep_sensitive=True, year="Y1")
    assert people.targets.tolist() == [0, 0]
    assert people.inputs.shape == (2, 21)
    assert heritage_health(folder, sensitive="age").inputs.shape == (2, 11)
    with pytest.raises(InputError, match="claims of the year Y9, got none"):
        heritage_health(folder, year="Y9")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("Claims.csv", "3,10", "4,10", "line 4: expected a MemberID of Members.csv, got '4'"),
        ("Claims.csv", "Vendor", "Seller", "expected the columns Vendor, got MemberID"),
        ("Claims.csv", ",0,EM", ",,EM", r"line 4: expected a CharlsonIndex of 0, 1-2, 3-4, 5\+, got ''"),
        ("Claims.csv", ",EM,0", ",EM,0,1", "line 4: expected 14 fields"),
        ("Members.csv", "M\n", "X\n", "row 0, column sex: expected one of F, M, unknown; got 'X'"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, file: str, old: str, new: str, message: str) -> None:
    path = folder / file
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=message):
        heritage_health(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Members\.csv: expected a CSV file with MemberID, AgeAtFirstClaim, Sex"):
        heritage_health(tmp_path)
