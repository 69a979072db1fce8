from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak.core import Objective
from gradleak.reporting.pages.layers.wording import by_chance
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.risk import LayerProfile, VisibleLayers, advise
from gradleak.risk.layer_advice import of_attribute

SIZES = {"a.weight": 10, "b.weight": 40, "c.weight": 5, "d.weight": 45}


def score(value: float | None, interval: tuple[float, float] | None = None, effect: float | None = None) -> Score:
    return Score(
        name="leak",
        value=value,
        unit="nats",
        leakier=Leakier.HIGHER,
        evidence=Evidence.ESTIMATE,
        interval=interval,
        outcome=Outcome.CONVERGED if value is not None else Outcome.NOT_FINITE,
        details={} if effect is None else {"effect_size": effect},
    )


def exact(value: float) -> Score:
    return score(value, (value, value))


def profile(measure: str, *scores: Score) -> LayerProfile:
    names = list("abcd"[: len(scores)])
    return LayerProfile(
        measure=measure,
        scores=dict(zip(names, scores, strict=True)),
        groups={name: (f"{name}.weight",) for name in names},
    )


INPUTS = profile("original", exact(9.0), exact(5.0), exact(2.0), exact(1.0))
ATTRIBUTE = profile("latent", exact(0.1), exact(0.3), exact(0.5), exact(0.2))


def test_a_layer_stands_where_the_profile_that_thinks_worst_of_it_puts_it() -> None:
    advice = advise([INPUTS, ATTRIBUTE], SIZES, budget=0.2)
    # a and c are first for one of the two; b is second in both; d is third at best.
    assert [layer.name for layer in advice.layers] == ["c", "a", "b", "d"]
    assert advice.chosen == ("c", "a")
    assert advice.tensors == ("c.weight", "a.weight")
    first = advice.layers[0]
    assert (first.entries, first.share, first.rank) == (5, 0.05, 1)
    assert first.why == "leaks most by latent; leaks less than the leakiest by original (place 3 of 4)."


def test_equal_means_put_the_smaller_layer_first() -> None:
    mirrored = profile("latent", exact(2.0), exact(5.0), exact(9.0), exact(1.0))
    assert [layer.name for layer in advise([INPUTS, mirrored], SIZES).layers] == ["c", "a", "b", "d"]


def test_what_does_not_fit_is_passed_over_and_named() -> None:
    large_first = profile("original", exact(2.0), exact(9.0), exact(1.0), exact(5.0))
    advice = advise([large_first], SIZES, budget=0.1)
    assert advice.chosen == ("a",)
    by_name = {layer.name: layer for layer in advice.layers}
    assert "its 40 parameters (40.0% of all) do not fit a budget of 10.0%" in by_name["b"].why
    assert "of all) do not fit a budget of 10.0% beside the 10.0% that are chosen already" in by_name["c"].why
    assert advice.note == "put first by a measure, but larger than the budget leaves room for: b"


def test_the_budget_is_met_to_the_last_parameter_whatever_the_rounding() -> None:
    assert advise([INPUTS], {**SIZES, "a.weight": 29, "d.weight": 26}, budget=0.29).chosen == ("a",)
    assert advise([INPUTS], {**SIZES, "a.weight": 30, "d.weight": 25}, budget=0.29).chosen == ("c",)


def test_parameters_outside_of_the_groups_count_to_the_whole() -> None:
    assert advise([INPUTS], {**SIZES, "e.weight": 900}, budget=0.1).layers[0].share == 0.01


def test_a_score_without_a_value_is_never_safe() -> None:
    unknown = profile("original", exact(9.0), exact(5.0), exact(2.0), score(None))
    advice = advise([unknown], SIZES)
    assert [layer.name for layer in advice.layers] == ["a", "d", "b", "c"]
    assert advice.layers[1].unknown_in == ("original",)
    assert "no evidence of safety" in advice.layers[1].why


def test_a_profile_without_any_value_tells_nothing_and_is_named() -> None:
    lost = profile("latent", *[score(None)] * 4)
    advice = advise([INPUTS, lost], SIZES)
    assert [layer.name for layer in advice.layers] == list("abcd")
    assert advice.silent == ("latent",)
    assert advice.profiles == ("original",)
    assert "left out: latent" in advice.note
    nothing = advise([lost], SIZES)
    assert nothing.chosen == ()
    assert "no evidence of safety" in nothing.note
    assert [layer.why for layer in nothing.layers] == ["no profile has a value for any layer."] * 4


def test_rivals_are_those_whose_intervals_meet_the_first() -> None:
    wide = profile("latent", score(0.5, (0.2, 0.8)), score(0.4, (0.1, 0.7)), score(0.1, (0.0, 0.15)), exact(0.05))
    by_name = {layer.name: layer for layer in advise([wide], SIZES).layers}
    assert by_name["a"].first_in == ("latent",)
    assert not by_name["a"].rival_in
    assert by_name["b"].rival_in == ("latent",)
    assert not by_name["c"].rival_in
    assert not by_name["d"].rival_in


def test_distances_are_placed_by_effect_size() -> None:
    distance = profile(
        "subspace_distance",
        score(1.0, effect=9.0),
        score(3.0, effect=0.1),
        score(2.0, effect=4.0),
        score(2.5, effect=1.0),
    )
    advice = advise([distance], SIZES)
    assert [layer.name for layer in advice.layers] == ["a", "c", "d", "b"]
    assert all(layer.rival_in == ("subspace_distance",) for layer in advice.layers[1:])


def test_lower_values_lead_where_lower_leaks() -> None:
    lower = LayerProfile(
        measure="error",
        scores={name: replace(one, leakier=Leakier.LOWER) for name, one in INPUTS.scores.items()},
        groups=INPUTS.groups,
    )
    assert [layer.name for layer in advise([lower], SIZES).layers] == list("dcba")


def test_a_second_profile_of_one_measure_has_its_own_name() -> None:
    advice = advise([ATTRIBUTE, replace(INPUTS, measure="latent")], SIZES)
    assert advice.profiles == ("latent", "latent (2)")


def test_sets_that_overlap_cost_their_new_parameters_alone() -> None:
    scores = {"a + c": exact(3.0), "c + d": exact(1.0), "a": exact(2.0)}
    groups = {"a + c": ("a.weight", "c.weight"), "c + d": ("c.weight", "d.weight"), "a": ("a.weight",)}
    advice = advise([LayerProfile(measure="original", scores=scores, groups=groups)], SIZES, budget=0.15)
    assert advice.chosen == ("a + c", "a")
    assert advice.tensors == ("a.weight", "c.weight")


def test_matrices_by_layer_name_their_layer_alone() -> None:
    layers = replace(ATTRIBUTE, groups={name: (name,) for name in "abcd"})
    advice = advise([INPUTS, layers], SIZES, budget=0.2)
    assert advice.tensors == ("c.weight", "a.weight")
    with pytest.raises(InputError, match="one grouping"):
        advise([INPUTS, layers], {**SIZES, "a.bias": 1})


def test_the_choice_is_what_an_enclave_takes() -> None:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 2), nn.ReLU(), nn.Linear(2, 60))
    for tensor in model.parameters():
        nn.init.normal_(tensor, generator=generator)
    objective = Objective.from_module(model)
    groups = {"0": ("0.weight", "0.bias"), "2": ("2.weight", "2.bias")}
    found = LayerProfile(measure="original", scores={"0": exact(2.0), "2": exact(1.0)}, groups=groups)
    sizes = {name: tensor.numel() for name, tensor in objective.params.items()}
    advice = advise([found], sizes)
    assert advice.entries == sum(tensor.numel() for tensor in model.parameters())
    assert VisibleLayers.hiding(objective, *advice.tensors).names == groups["2"]


@pytest.mark.parametrize(
    ("profiles", "sizes", "budget", "message"),
    [
        ([], SIZES, 0.1, "at least one LayerProfile"),
        (
            [INPUTS, profile("latent", exact(1.0), exact(2.0))],
            SIZES,
            0.1,
            "profiles of one grouping, got original of a, b",
        ),
        ([INPUTS], {"a": 10}, 0.1, "sizes: original names 'a.weight', no shared tensor or layer"),
        ([INPUTS], {**SIZES, "a.weight": 0}, 0.1, "at least 1"),
        ([INPUTS], SIZES, 10, "between 0 and 1"),
    ],
    ids=["none", "groupings", "layers", "zero", "percent"],
)
def test_refuses_what_it_cannot_combine(
    profiles: list[LayerProfile], sizes: dict[str, int], budget: float, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        advise(profiles, sizes, budget=budget)


def test_refuses_measures_of_no_leakage() -> None:
    neither = LayerProfile(
        measure="entries",
        scores={name: replace(one, leakier=Leakier.NEITHER) for name, one in INPUTS.scores.items()},
        groups=INPUTS.groups,
    )
    with pytest.raises(InputError, match="measures of leakage, got entries"):
        advise([neither], SIZES)


def test_equal_scores_share_a_place_whatever_the_order_of_the_model() -> None:
    """Two layers in which nothing was found: neither is ahead by standing earlier in the model."""
    nothing = profile("latent", exact(0.0), exact(0.0), exact(0.4), exact(0.0))
    advice = advise([nothing], SIZES, budget=0.5)
    assert [layer.name for layer in advice.layers] == ["c", "a", "b", "d"]  # smaller ones ahead
    assert all("place 2 of 4" in layer.why for layer in advice.layers[1:])


def test_a_profile_that_found_nothing_anywhere_puts_no_layer_first() -> None:
    nothing = profile("latent", *[exact(0.0)] * 4)
    backwards = profile("original", exact(1.0), exact(2.0), exact(5.0), exact(9.0))
    advice = advise([nothing, backwards], SIZES)
    assert [layer.name for layer in advice.layers] == ["d", "c", "b", "a"]
    assert [layer.first_in for layer in advice.layers] == [("original",), (), (), ()]
    assert all("latent" in layer.rival_in for layer in advice.layers)


def test_a_distance_whose_null_has_no_spread_does_not_bring_raw_distances_back() -> None:
    """Effect sizes order the layers; one layer without one, at the level of its null, has the effect 0."""
    flat = replace(score(5.0), details={"effect_size": None, "p_value": 1.0})
    distance = profile(
        "subspace_distance", score(1.0, effect=9.0), score(3.0, effect=0.1), flat, score(2.5, effect=1.0)
    )
    assert [layer.name for layer in advise([distance], SIZES).layers] == ["a", "d", "b", "c"]


def chance(value: float, p_value: float, *, effect: float) -> Score:
    return replace(score(value), details={"effect_size": effect, "p_value": p_value})


def test_a_profile_not_beyond_chance_has_no_say_in_the_order() -> None:
    """Distances of p = 0.7: their effect sizes are noise, so the profile of the inputs alone orders the layers."""
    noise = profile("subspace_distance", *[chance(1.0, 0.7, effect=effect) for effect in (-1.0, 0.1, 0.2, 0.6)])
    advice = advise([INPUTS, noise], SIZES, budget=0.2)
    assert [layer.name for layer in advice.layers] == ["a", "b", "c", "d"]
    assert [layer.first_in for layer in advice.layers] == [("original",), (), (), ()]
    assert all("is not beyond chance by subspace_distance" in layer.why for layer in advice.layers)
    assert "without a say in the order, since it found nothing beyond chance: subspace_distance" in advice.note
    assert advice.chosen == ("a", "c")


def test_where_nothing_is_beyond_chance_no_layer_is_chosen() -> None:
    told = profile("latent_information (LogisticRegression)", *[score(0.1 * n, (-0.1, 0.5)) for n in range(4)])
    advice = advise([told], SIZES, budget=0.99)
    assert advice.chosen == ()
    assert [layer.name for layer in advice.layers] == list("abcd")  # of the model
    assert "none can be advised; that is no evidence of safety" in advice.note
    assert not any("leaks most" in layer.why or "exceed" in layer.why for layer in advice.layers)


def test_scores_beyond_chance_stand_ahead_of_those_that_are_not() -> None:
    """The largest number has the widest interval, which reaches 0: it may be the leakiest, and is not said to be."""
    told = profile("latent_information", score(0.5, (-0.1, 1.1)), score(0.2, (0.1, 0.3)), score(0.0, (0.0, 0.0)))
    first, *others = advise([told], {"a.weight": 10, "b.weight": 40, "c.weight": 5}).layers
    assert (first.name, first.first_in) == ("b", ("latent_information",))
    assert [layer.name for layer in others] == ["c", "a"]  # one place, the smaller one ahead
    assert all(layer.rival_in == ("latent_information",) and "leaks most" not in layer.why for layer in others)


def test_a_layer_that_a_test_finds_nothing_in_is_no_rival_for_want_of_an_interval() -> None:
    found = profile("subspace_distance", *[chance(1.0, p, effect=effect) for p, effect in ((0.01, 3.0), (0.99, -4.0))])
    first, other = advise([found], {"a.weight": 10, "b.weight": 10}).layers
    assert (first.name, other.rival_in) == ("a", ())
    assert "leaks less than the leakiest by subspace_distance (place 2 of 2)" in other.why


@pytest.mark.parametrize("p_value", [None, 0.001, 0.05, 0.051, 0.7])
@pytest.mark.parametrize("interval", [None, (-0.1, 0.2), (0.0, 0.2), (0.1, 0.2)])
@pytest.mark.parametrize(
    ("measure", "target"),
    [
        ("latent_information (KNearest)", None),
        ("original_information", None),
        ("mine_information", "labels"),
        ("mine_information", "inputs"),
    ],
)
def test_advice_and_report_judge_chance_alike(
    p_value: float | None, interval: tuple[float, float] | None, measure: str, target: str | None
) -> None:
    one = replace(score(0.1, interval), details={"p_value": p_value, "target": target})
    by_report = by_chance(one, "latent" if of_attribute(measure, one) else "original")
    assert bool(advise([profile(measure, one)], {"a.weight": 10}).layers[0].first_in) is not by_report
