from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio
from sklearn.datasets import load_digits

from gradleak.core import Batch, Domain, DomainKind, Reconstruction
from gradleak.results import Evidence, InputError, Leakier, Outcome, Score
from gradleak.scoring import score_images

GRAY = Domain.image(channels=1, height=28, width=28)


def claim(inputs: torch.Tensor | None, **fields: object) -> Reconstruction:
    given: dict[str, object] = {"targets": None, "loss": 0.0, "outcome": Outcome.CONVERGED, **fields}
    return Reconstruction(inputs=inputs, **given)  # type: ignore[arg-type]


def digits(count: int) -> torch.Tensor:
    small = torch.tensor(load_digits().images[:count] / 16, dtype=torch.float64)[:, None]
    return torch.nn.functional.interpolate(small, size=(28, 28), mode="bilinear")


def batch(pixels: torch.Tensor, domain: Domain = GRAY) -> Batch:
    return Batch(domain.from_pixels(pixels), torch.arange(len(pixels)), domain)


def named(scores: list[Score]) -> dict[str, Score]:
    return {score.name: score for score in scores}


def noise(shape: torch.Size, std: float, seed: int = 0) -> torch.Tensor:
    return std * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_names_units_directions_and_evidence() -> None:
    pixels = digits(1)
    scores = score_images(claim(pixels + noise(pixels.shape, 0.01), targets=torch.tensor([0])), batch(pixels))
    assert [score.name for score in scores] == ["mse", "pixel_rmse", "psnr", "ssim", "exact_hits", "label_accuracy"]
    assert {score.evidence for score in scores} == {Evidence.ATTACK}
    by_name = named(scores)
    assert by_name["pixel_rmse"].unit == "pixel_rmse"
    assert by_name["psnr"].unit == "dB"
    assert by_name["mse"].leakier is by_name["pixel_rmse"].leakier is Leakier.LOWER
    assert by_name["psnr"].leakier is by_name["ssim"].leakier is by_name["exact_hits"].leakier is Leakier.HIGHER
    assert by_name["psnr"].value == pytest.approx(-20 * math.log10(by_name["pixel_rmse"].value or 0), rel=1e-12)


def test_the_worst_case_comes_first_and_the_order_does_not_matter() -> None:
    pixels = digits(4)
    claims = pixels + torch.stack([noise(pixels.shape[1:], std, seed=k) for k, std in enumerate((0.2, 0.01, 0.1, 0.3))])
    straight = named(score_images(claim(claims), batch(pixels)))
    shuffled = named(score_images(claim(claims[[2, 3, 0, 1]]), batch(pixels)))
    for name in ("mse", "pixel_rmse", "psnr", "ssim"):
        assert shuffled[name].value == straight[name].value
        assert shuffled[name].details["per_example"] == straight[name].details["per_example"]
    peers = [
        peak_signal_noise_ratio(truth.numpy(), found.numpy(), data_range=1.0)
        for truth, found in zip(pixels, claims, strict=True)
    ]
    psnr = straight["psnr"]
    assert psnr.details["per_example"] == pytest.approx(peers)
    assert psnr.value == pytest.approx(max(peers)) == pytest.approx(peers[1])
    assert psnr.details["median"] == pytest.approx(sum(sorted(peers)[1:3]) / 2)
    assert psnr.details["aggregation"] == "worst for the client"
    assert straight["pixel_rmse"].value == min(straight["pixel_rmse"].details["per_example"])
    wrong = straight["wrong_pairing_rmse"]
    assert wrong.value == straight["pixel_rmse"].details["wrong_pairing_pixel_rmse"] > 0.2
    assert wrong.value == pytest.approx(shuffled["wrong_pairing_rmse"].value, rel=1e-12)
    assert wrong.evidence is Evidence.EXACT
    assert psnr.n == 4


def test_exact_hits_and_infinite_psnr_are_never_averaged() -> None:
    pixels = digits(4)
    claims = pixels.clone()
    claims[1] += noise(pixels.shape[1:], 0.1)
    claims[3] += noise(pixels.shape[1:], 0.1, seed=1)
    scores = named(score_images(claim(claims), batch(pixels)))
    assert scores["psnr"].value == math.inf
    finite = sorted(scores["psnr"].details["per_example"])[1]
    assert scores["psnr"].details["median"] == finite < 30.0  # two of four are perfect, and no middle is
    errors = sorted(scores["pixel_rmse"].details["per_example"])
    assert scores["pixel_rmse"].details["median"] == errors[2] / 2 > 0.0
    assert scores["exact_hits"].value == 0.5
    assert scores["exact_hits"].details["per_example"] == [True, False, True, False]
    assert scores["psnr"].to_dict()["value"] == "inf"


def test_duplicates_in_the_batch() -> None:
    pixels = digits(3)
    pixels[1] = pixels[0]
    scores = named(score_images(claim(pixels.flip(0)), batch(pixels)))
    assert scores["exact_hits"].value == 1.0


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [4, 8, 28])
def test_small_images_have_errors_but_no_ssim(channels: int, size: int) -> None:
    pixels = torch.rand(2, channels, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    domain = Domain.image(channels=channels, height=size, width=size)
    scores = named(score_images(claim(pixels + noise(pixels.shape, 0.01)), batch(pixels, domain)))
    assert scores["pixel_rmse"].value == pytest.approx(0.01, rel=0.4)
    if size < 11:
        assert (scores["ssim"].value, scores["ssim"].outcome) == (None, Outcome.UNSUPPORTED)
        assert "not defined at this size" in scores["ssim"].note
    else:
        assert scores["ssim"].value is not None
        assert 0.9 < scores["ssim"].value < 1


def test_table_rows_have_errors_but_no_ssim() -> None:
    domain = Domain(shape=(6,), low=-4.0, high=4.0, kind=DomainKind.TABULAR)
    rows = torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(2, 6)
    scores = named(score_images(claim(rows + 0.8), Batch(rows, torch.tensor([0, 1]), domain)))
    assert scores["pixel_rmse"].value == pytest.approx(0.1)
    assert scores["ssim"].outcome is Outcome.UNSUPPORTED


@pytest.mark.parametrize("channels", [1, 3])
def test_every_declared_normalization_gives_the_same_scores(channels: int) -> None:
    truth = digits(2).expand(-1, channels, -1, -1).contiguous()
    found = truth + noise(truth.shape, 0.05)
    shape = (channels, 28, 28)
    domains = [
        Domain(shape=shape),
        Domain(shape=shape, mean=(0.5,), std=(0.5,)),
        Domain(shape=shape, low=-1.0, high=1.0),
        Domain(shape=shape, low=0.0, high=255.0, mean=(33.0,), std=(78.0,)),
        Domain(shape=shape, mean=(0.485, 0.456, 0.406)[:channels], std=(0.229, 0.224, 0.225)[:channels]),
    ]
    results = [named(score_images(claim(domain.from_pixels(found)), batch(truth, domain))) for domain in domains]
    for result in results[1:]:
        for name, score in result.items():
            if score.value is not None:
                assert score.value == pytest.approx(results[0][name].value, rel=1e-10)


def test_undeclared_range_is_an_error() -> None:
    pixels = digits(1)
    with pytest.raises(InputError, match="expected a declared domain"):
        score_images(claim(pixels), Batch(pixels, torch.tensor([0])))


@pytest.mark.parametrize("scale", [2.0, 255.0, -1.0])
def test_truth_outside_its_declared_range_is_an_error(scale: float) -> None:
    pixels = digits(1) * scale
    with pytest.raises(InputError, match=r"expected pixels within \[0, 1\].*declare the range"):
        score_images(claim(pixels), batch(pixels))


def test_channels_last_are_an_error() -> None:
    pixels = torch.zeros(1, 28, 28, 1, dtype=torch.float64)
    with pytest.raises(InputError, match="permute"):
        score_images(claim(pixels), batch(pixels, Domain(shape=(28, 28, 1))))


def test_a_claim_of_another_shape_is_an_error() -> None:
    with pytest.raises(InputError, match=r"expected \(b, 1, 28, 28\) like the truth, got \(1, 28, 28, 1\)"):
        score_images(claim(torch.zeros(1, 28, 28, 1)), batch(digits(1)))


def test_claims_outside_the_range_are_scored_as_claimed_and_said() -> None:
    pixels = digits(1)
    found = pixels.clone()
    found[..., :7, :] = 3.0
    scores = named(score_images(claim(found), batch(pixels)))
    expected = float((found - pixels).pow(2).mean().sqrt())
    assert scores["pixel_rmse"].value == pytest.approx(expected, rel=1e-12)
    assert "25.0% of the claimed pixels lie outside the valid range" in scores["pixel_rmse"].note


@pytest.mark.parametrize("outcome", [Outcome.NO_SIGNAL, Outcome.NOT_FINITE, Outcome.UNSUPPORTED, Outcome.FAILED])
def test_no_claim_has_its_outcome_and_no_value(outcome: Outcome) -> None:
    scores = score_images(claim(None, outcome=outcome, loss=None, note="why"), batch(digits(2)))
    assert len(scores) == 6
    assert {(score.value, score.outcome, score.note) for score in scores} == {(None, outcome, "why")}


def test_inputs_of_a_failed_attack_are_not_scored() -> None:
    pixels = digits(1)
    scores = score_images(claim(pixels, outcome=Outcome.NO_SIGNAL), batch(pixels))
    assert {score.value for score in scores} == {None}


def test_a_converged_attack_without_inputs_is_unsupported_not_zero() -> None:
    scores = named(score_images(claim(None, targets=torch.tensor([1, 0])), batch(digits(2))))
    assert (scores["psnr"].value, scores["psnr"].outcome) == (None, Outcome.UNSUPPORTED)
    assert scores["label_accuracy"].value == 1.0


def test_nan_is_never_scored() -> None:
    pixels = digits(3)
    scores = named(score_images(claim(torch.full_like(pixels, float("nan"))), batch(pixels)))
    assert (scores["mse"].value, scores["mse"].outcome) == (None, Outcome.NOT_FINITE)
    partly = pixels.clone()
    partly[0, 0, 3, 3] = float("inf")
    scores = named(score_images(claim(partly[[1, 0, 2]]), batch(pixels)))
    assert scores["psnr"].details["per_example"] == [None, math.inf, math.inf]
    assert scores["exact_hits"].value == pytest.approx(2 / 3)
    assert scores["psnr"].n == 2
    assert "1 claimed example(s) hold NaN" in scores["psnr"].note


def test_budget_spent_keeps_value_and_outcome() -> None:
    pixels = digits(1)
    scores = named(score_images(claim(pixels + 0.1, outcome=Outcome.BUDGET_SPENT), batch(pixels)))
    assert scores["pixel_rmse"].outcome is Outcome.BUDGET_SPENT
    assert scores["pixel_rmse"].value == pytest.approx(0.1)


def test_nothing_is_changed_in_place() -> None:
    pixels = digits(2)
    truth, found = batch(pixels), pixels.flip(0).clone()
    kept_truth, kept_found = truth.inputs.clone(), found.clone()
    score_images(claim(found), truth)
    assert torch.equal(truth.inputs, kept_truth)
    assert torch.equal(found, kept_found)


def test_a_range_of_which_images_use_little_is_said_beside_every_error() -> None:
    wide = Domain(shape=(1, 28, 28), low=0.0, high=255.0)
    shown = digits(2)
    told = Batch(shown, torch.arange(2), wide)
    scores = named(score_images(claim(shown + 0.1), told))
    for name in ("mse", "pixel_rmse", "psnr", "exact_hits"):
        assert "1/255 of the declared range 0 to 255" in scores[name].note
    # What the note says is so: the same pair in the range that it has.
    narrow = named(score_images(claim(shown + 0.1), Batch(shown, torch.arange(2), replace(wide, high=1.0))))
    assert narrow["pixel_rmse"].value == pytest.approx(255 * (scores["pixel_rmse"].value or 0))
    assert "declared range" not in narrow["pixel_rmse"].note
    both = score_images(claim(shown + 300.0), told)[0].note
    assert both.startswith(
        "100.0% of the claimed pixels lie outside the valid range; scored as claimed; all values lie"
    )


def test_a_dark_image_beside_others_is_none_of_a_wrong_range() -> None:
    whole = batch(digits(3))
    dark = batch(0.3 * digits(3))
    assert "30% of the declared range" in score_images(claim(dark.inputs), dark)[0].note
    assert score_images(claim(dark.inputs), dark, beside=[whole])[0].note == ""
    other = Batch(whole.inputs, whole.targets, replace(GRAY, high=2.0))  # of another domain: says nothing
    assert score_images(claim(dark.inputs), dark, beside=[other])[0].note
