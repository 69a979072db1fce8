"""The privacy-utility study at small size."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from gradleak.results import Outcome
from studies import Family, PrivacyUtility

SMALL = {
    "rows": 500,
    "test_rows": 120,
    "public_rows": 80,
    "rounds": 4,
    "batch_size": 40,
    "learning_rates": (0.5,),
    "seeds": 1,
    "examples": 1,
    "attack": "none",
}


def test_every_defense_has_a_point_with_utility_and_privacy(tmp_path: Path) -> None:
    said: list[str] = []
    families = tuple(Family)
    result = PrivacyUtility(families=families, values=(0.5,), **SMALL).run(say=said.append)
    assert len(result.findings) == len(families) + 1 == len(said)
    assert all(finding.ours is not None for finding in result.findings)
    privacy, sent = result.tables
    by_setting = {row[0]: row for row in privacy.rows}
    columns = {name: place for place, name in enumerate(privacy.columns)}
    clipped = by_setting["clipped update, norm 0.5"]
    # Whoever knows of the clip divides it out.
    assert float(clipped[columns["predicted static"]]) > 0.05
    assert float(clipped[columns["predicted adaptive"]]) < 1e-9
    epsilons = {row[0]: row[sent.columns.index("epsilon of the training")] for row in sent.rows}
    assert epsilons["pruning, ratio 0.5"] == "none"
    assert float(epsilons["DP-SGD, Poisson, noise on the sum, noise multiplier 0.5"]) > 0
    guarantees = {row[0]: row[1] for row in sent.rows}
    assert guarantees["sign"] == "heuristic"
    assert guarantees["DP-SGD, noise per example, std 0.5"] == "formal, hides an example"
    page = result.write(tmp_path)
    assert "![privacy_utility](privacy_utility.svg)" in page.read_text(encoding="utf-8")
    drawn = (tmp_path / "privacy_utility.svg").read_text(encoding="utf-8")
    assert ET.fromstring(drawn).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in drawn
    assert "static attacker" in drawn
    points = json.loads((tmp_path / "privacy_utility.json").read_text(encoding="utf-8"))["details"]["points"]
    assert points[0]["utility"]["scores"][0]["outcome"] == Outcome.CONVERGED.label


@pytest.mark.slow
def test_attacks_stand_beside_the_predictions() -> None:
    result = PrivacyUtility(
        families=(Family.PRUNE,),
        values=(0.9,),
        **(SMALL | {"attack": "gauss_newton", "attack_iterations": 4, "rounds": 3}),
    ).run(say=lambda _: None)
    privacy = result.tables[0]
    columns = {name: place for place, name in enumerate(privacy.columns)}
    pruned = privacy.rows[1]
    assert float(pruned[columns["reached adaptive"]]) < float(pruned[columns["reached static"]])
    assert "static attacker at" in result.conclusion[1]


def test_the_census_is_judged_by_auroc() -> None:
    result = PrivacyUtility(
        data="adult", families=(Family.SIGN,), **(SMALL | {"rows": 800, "examples": 0, "learning_rates": (0.01,)})
    ).run(say=lambda _: None)
    assert result.findings[0].quantity == "undefended: test auroc"
    assert 0 < result.findings[1].ours < 1
    assert len(result.tables) == 1
    assert result.figures == {}
