"""Nothing that a plan names is called before its kind is known: from a class, or from what a function says it returns."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from gradleak.attacks import DLG, Attack
from gradleak.attacks.inference import Classifier, RandomForest
from gradleak.auditing.plan_file import build_plan
from gradleak.auditing.plan_names import classes, fits, makes
from gradleak.core import Batch
from gradleak.data import Population, Table
from gradleak.datasets import adult_table, scikit_digits
from gradleak.models import initialize_default, mlp
from gradleak.results import GradleakError, PlanError
from tests.auditing import effects

SMALL: dict[str, Any] = {
    "model": {"use": "mlp", "features": 65, "hidden": [4], "classes": 2},
    "scenarios": [{"name": "plain"}],
}
ROWS: dict[str, Any] = {"data": {"use": "adult_census", "count": 2}}
GAME = {
    "use": "PropertyGame",
    "population": {"use": "adult_population", "sensitive": "gender"},
    "batch_size": 2,
    "rounds": 1,
}
LAYERS = {"data": {"use": "adult_table"}, "target": "loan", "attribute": "gender", "count": 8}
EPSILON = {"use": "AttributeAudit", "table": {"use": "adult_table"}, "target": "loan", "attribute": "gender"}


def named(use: str) -> dict[str, dict[str, Any]]:
    """A plan for each place where a plan names something, with that name in it."""
    it = {"use": use}
    rows = SMALL | ROWS
    return {
        "model": rows | {"model": it},
        "model.initialize": rows | {"model": SMALL["model"] | {"initialize": it}},
        "data": SMALL | {"data": it},
        "objective.loss": rows | {"objective": {"loss": use}},
        "threat": rows | {"threat": it},
        "threat.public": rows | {"threat": {"use": "HonestButCurious", "public": it}},
        "threat.generator": rows | {"threat": {"use": "HonestButCurious", "generator": it}},
        "attacks.a": rows | {"attacks": {"a": it}},
        "attacks.a.steps": rows | {"attacks": {"a": {"use": "GaussNewton", "steps": it}}},
        "measures.a": rows | {"measures": {"a": it}},
        "measures.a.solver": rows | {"measures": {"a": {"use": "InversionInfluence", "solver": it}}},
        "measures.a.public": rows | {"measures": {"a": {"use": "BayesianCramerRao", "public": it}}},
        "protocol": rows | {"scenarios": [{"name": "plain", "protocol": it}]},
        "protocol.protocol": rows
        | {
            "scenarios": [
                {"name": "plain", "protocol": {"use": "SecureAggregation", "protocol": it, "examples": [1, 1]}}
            ]
        },
        "defenses": rows | {"scenarios": [{"name": "plain", "defenses": [it]}]},
        "utility.data": rows | {"utility": {"data": it, "test_rows": 2, "learning_rate": 0.1}},
        "inference.g": SMALL | {"inference": {"g": it}},
        "inference.g.population": SMALL | {"inference": {"g": GAME | {"population": it}}},
        "inference.g.adversary": SMALL | {"inference": {"g": GAME | {"adversary": it}}},
        "inference.g.features": SMALL | {"inference": {"g": GAME | {"features": it}}},
        "layers.l.data": SMALL | {"layers": {"l": LAYERS | {"data": it, "measures": [{"use": "Sensitivity"}]}}},
        "layers.l.measures": SMALL | {"layers": {"l": LAYERS | {"measures": [it]}}},
        "layers.l.measures.classifier": SMALL
        | {"layers": {"l": LAYERS | {"measures": [{"use": "LatentInformation", "classifier": it}]}}},
        "privacy.p": SMALL | {"privacy": {"p": it}},
        "privacy.p.table": SMALL | {"privacy": {"p": EPSILON | {"table": it}}},
        "privacy.p.estimators": SMALL | {"privacy": {"p": EPSILON | {"estimators": [it]}}},
        "privacy.p.canary": SMALL | {"privacy": {"p": EPSILON | {"canary": it}}},
    }


PLACES = tuple(named(""))
OUTSIDE = (
    "os:getcwd",
    "os:abort",
    "shutil:rmtree",
    "subprocess:Popen",
    "torch:Tensor",
    "torch.nn.functional:relu",
    "os:environ",
)

# A function that says it returns a tensor, as a loss does; public examples may be a tensor.
OF_THE_KIND = {
    "objective.loss": ("torch.nn.functional:relu",),
    "measures.a.public": ("torch.nn.functional:relu", "torch:Tensor"),
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_of_the_kind_is_refused_and_never_called(place: str) -> None:
    effects.CALLED.clear()
    for name in (*(f"tests.auditing.effects:{name}" for name in effects.NAMES), *OUTSIDE):
        if name in OF_THE_KIND.get(place, ()):
            continue
        with pytest.raises(PlanError) as refusal:
            build_plan(named(name)[place], folder=Path())
        assert name in str(refusal.value), (name, str(refusal.value))
        assert str(refusal.value).isprintable()
        assert effects.CALLED == []


@pytest.mark.parametrize("place", PLACES)
def test_what_the_catalog_has_of_another_kind_is_refused_too(place: str) -> None:
    wrong = "resnet8" if place not in ("model", "threat.generator") else "GaussNewton"
    with pytest.raises(GradleakError) as refusal:
        build_plan(named(wrong)[place], folder=Path())
    assert str(refusal.value).isprintable()


def test_what_a_constructor_says_it_makes() -> None:
    assert makes(mlp) == (nn.Sequential,)
    assert makes(initialize_default) == (nn.Module,)
    assert makes(adult_table) == (Table,)
    assert makes(DLG) == (DLG,)
    assert makes(functools.partial(mlp, features=2)) == (nn.Sequential,)
    assert makes(effects.dialer) == (int,)
    assert makes(effects.made) == (effects.Trap,)
    for silent in (effects.silent, effects.anything, effects.unreadable, effects.unnamed, len, dict.fromkeys):
        assert makes(silent) in ((), (dict,)), silent


def test_a_kind_fits_where_all_that_may_be_returned_is_of_it() -> None:
    def either() -> Batch | Table:
        raise AssertionError

    def pair() -> tuple[Tensor, Tensor]:
        raise AssertionError

    assert fits(scikit_digits, (Batch,))
    assert not fits(scikit_digits, (Population,))
    assert fits(either, (Batch, Table))
    assert not fits(either, (Batch,))
    assert fits(pair, (Batch,))
    assert not fits(pair, (Table,))
    assert fits(RandomForest, (Classifier,))
    assert not fits(RandomForest, (Attack,))


def test_the_classes_of_an_annotation() -> None:
    assert classes(int | None) == (int,)
    assert classes(Batch | tuple[Tensor, Tensor] | None) == (Batch, tuple)
    assert classes(Any) == ()
