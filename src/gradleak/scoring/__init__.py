"""Claim against truth: image errors in pixels scaled to [0, 1], one-to-one pairing, blind baselines."""

from gradleak.scoring.baseline import BASELINE_NAMES, blind_baseline
from gradleak.scoring.image import SSIM_WINDOW, mse, psnr, rmse, ssim, ssim_obstacle
from gradleak.scoring.labels import label_accuracy
from gradleak.scoring.pairing import Pairing, pair, wrong_pairing_rmse
from gradleak.scoring.reconstruction import EXACT_HIT_RMSE, pixels_of_truth, score_images

__all__ = [
    "BASELINE_NAMES",
    "EXACT_HIT_RMSE",
    "SSIM_WINDOW",
    "Pairing",
    "blind_baseline",
    "label_accuracy",
    "mse",
    "pair",
    "pixels_of_truth",
    "psnr",
    "rmse",
    "score_images",
    "ssim",
    "ssim_obstacle",
    "wrong_pairing_rmse",
]
