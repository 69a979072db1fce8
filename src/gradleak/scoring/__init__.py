"""Claim against truth: image errors in pixels scaled to [0, 1], one-to-one pairing, blind guesses; guesses of adversaries."""

from gradleak.scoring.cells import CELL_TOLERANCE, score_cells
from gradleak.scoring.chance import (
    BASELINE_NAMES,
    CHANCE_ENTRIES,
    CHANCE_LEVEL,
    beyond_luck,
    blind_baseline,
    chance_pixel_rmse,
)
from gradleak.scoring.claims import blind_scores, check_truth, luck_of, score_claim, score_tokens
from gradleak.scoring.classification import confusion, leaks, score_posteriors
from gradleak.scoring.image import SSIM_WINDOW, mse, psnr, rmse, ssim, ssim_obstacle
from gradleak.scoring.pairing import Pairing, label_accuracy, pair, wrong_pairing_rmse
from gradleak.scoring.perceptual import (
    ST_LPIPS_SIDE,
    PerceptualNetwork,
    score_perceptual,
    st_lpips,
    st_lpips_obstacle,
)
from gradleak.scoring.pooling import pooled
from gradleak.scoring.reconstruction import EXACT_HIT_RMSE, pixels_of_truth, range_ends, range_note, score_images
from gradleak.scoring.text import (
    Guessers,
    GuessLevels,
    Overlap,
    ScoredSentences,
    SentenceScore,
    bag_overlap,
    feature_mse,
    google_bleu,
    rouge_l,
    rouge_n,
    score_sentence,
    score_sentences,
)

__all__ = [
    "BASELINE_NAMES",
    "CELL_TOLERANCE",
    "CHANCE_ENTRIES",
    "CHANCE_LEVEL",
    "EXACT_HIT_RMSE",
    "SSIM_WINDOW",
    "ST_LPIPS_SIDE",
    "GuessLevels",
    "Guessers",
    "Overlap",
    "Pairing",
    "PerceptualNetwork",
    "ScoredSentences",
    "SentenceScore",
    "bag_overlap",
    "beyond_luck",
    "blind_baseline",
    "blind_scores",
    "chance_pixel_rmse",
    "check_truth",
    "confusion",
    "feature_mse",
    "google_bleu",
    "label_accuracy",
    "leaks",
    "luck_of",
    "mse",
    "pair",
    "pixels_of_truth",
    "pooled",
    "psnr",
    "range_ends",
    "range_note",
    "rmse",
    "rouge_l",
    "rouge_n",
    "score_cells",
    "score_claim",
    "score_images",
    "score_perceptual",
    "score_posteriors",
    "score_sentence",
    "score_sentences",
    "score_tokens",
    "ssim",
    "ssim_obstacle",
    "st_lpips",
    "st_lpips_obstacle",
    "wrong_pairing_rmse",
]
