"""A small real task: scikit-learn's digits through a perceptron."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import gradleak as gl
from gradleak.datasets import scikit_digits
from gradleak.models import mlp
from gradleak.training import Task, split


@cache
def digits(rows: int = 600, test_rows: int = 200) -> tuple[gl.Batch, gl.Batch]:
    return split(scikit_digits(count=rows), test_rows=test_rows, generator=torch.Generator().manual_seed(0))


def perceptron(generator: torch.Generator) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), mlp(features=64, hidden=(16,), classes=10, activation="tanh", generator=generator)
    )


def task(**changes: object) -> Task:
    train, test = digits()
    settings: dict[str, object] = {"name": "digits", "train": train, "test": test, "make_model": perceptron}
    return Task(**(settings | changes))  # type: ignore[arg-type]


def release(*defenses: object) -> gl.Release:
    return gl.Release(gl.FedSGD(), list(defenses))  # type: ignore[arg-type]
