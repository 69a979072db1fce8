"""Study: bounds on errors of decoders of tokens, against an exact decoder that is played."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from gradleak.core import Batch, Domain, Exposure, Objective, Release, Vocabulary, describe, one_thread
from gradleak.models import minilm, transformer
from gradleak.models.minilm import minilm_obstacle
from gradleak.protocols import FedSGD
from gradleak.results import FANO_1961, PROAKIS_2008, Citation
from gradleak.risk import TokenDistances, TokenError
from studies.networks.minilm import minilm_ids, minilm_vocabulary
from studies.study import Finding, Say, Study, StudyResult, Table

# Noise in units of the median distance between two candidates: from errors of nothing to those of guessing.
NOISE = (0.1, 0.2, 0.3, 0.5, 1.0, 3.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sentences:
    """A model with sentences, each of which is a release of its own.

    Attributes:
        name: of the model, in print.
        model: on ids.
        ids: (n, T).
        vocabulary: of the model.
        loss: of the client.
    """

    name: str
    model: nn.Module
    ids: Tensor
    vocabulary: Vocabulary
    loss: str = "cross_entropy"

    def exposure(self, index: int) -> Exposure:
        """The release of one sentence without noise, its class 0 or 1 in turn, or its own ids to be predicted."""
        ids = self.ids[index : index + 1]
        targets = ids if self.loss == "causal_lm" else torch.tensor([index % 2])
        domain = Domain.tokens(self.vocabulary, ids.shape[1])
        return Exposure(self.objective, Batch(ids, targets, domain), Release(FedSGD()))

    @cached_property
    def objective(self) -> Objective:
        """One for all sentences, so that attacks run them in lockstep."""
        return Objective.from_module(self.model, loss=self.loss)


@dataclass(frozen=True, kw_only=True)
class TokenDecoders(Study):
    """Errors of exact decoders of single tokens, and whether both numbers of `TokenError` enclose them.

    The decoder takes, among candidates, the nearest released gradient, which is the maximum-likelihood one; it is told all
    other tokens. It is played at every place, sentence, network and noise level: for a candidate drawn uniformly, whose error
    lies between `least_error` and `mean_error`, and at the true token, where it is at most `best_error`. Intervals are those
    of Clopper and Pearson at 95 % over all settings together (Bonferroni). The same is asked of the linear form, whose
    numbers are estimates, while the decoder stays exact.

    Attributes:
        text: sentences, one a line.
        sentences: of each network; of MiniLM a quarter.
        length: tokens of a sentence, the first ones of each line.
        candidates: words beside the true one; of MiniLM 8.
        places: looked at in a sentence.
        plays: draws of noise for each setting.
        seed: of all draws.
    """

    name: ClassVar[str] = "token_decoders"
    source: ClassVar[str] = "bounds of TokenError"
    citations: ClassVar[tuple[Citation, ...]] = (PROAKIS_2008, FANO_1961)

    text: str
    sentences: int = 8
    length: int = 8
    candidates: int = 31
    places: int = 3
    plays: int = 4000
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about three minutes of one core."""
        rows: list[dict[str, Any]] = []
        with one_thread():
            for part in self._networks():
                for row in self._played(part):
                    rows.append(row)
                say(f"{part.name}: {sum(row['network'] == part.name for row in rows)} settings")
        _judge(rows, self.plays)
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=_findings(rows),
            conclusion=_conclusions(rows, self.plays),
            details={"rows": rows},
            tables=[_table(rows)],
        )

    def _networks(self) -> Iterator[Sentences]:
        ids, vocabulary = frequent_lines(self.text, self.sentences, self.length)

        def made(**settings: Any) -> nn.Module:
            return frozen_words(transformer(words=vocabulary.size, length=self.length, **settings).double().eval())

        for std in (0.02, 0.1):
            yield Sentences(name=f"BERT-like, std {std:g}", model=made(std=std), ids=ids, vocabulary=vocabulary)
            yield Sentences(
                name=f"GPT-like, std {std:g}", model=made(std=std, causal=True), ids=ids, vocabulary=vocabulary
            )
        language = transformer(words=vocabulary.size, length=self.length, causal=True, classes=0, tied=True, std=0.1)
        yield Sentences(
            name="GPT-like, language model, tied table shared",
            model=language.double().eval(),
            ids=ids,
            vocabulary=vocabulary,
            loss="causal_lm",
        )
        if minilm_obstacle() is None:
            lines = short_lines(self.text, max(1, self.sentences // 4))
            yield Sentences(
                name="MiniLM",
                model=frozen_words(minilm(generator=torch.Generator().manual_seed(self.seed))),
                ids=minilm_ids(lines, length=self.length),
                vocabulary=minilm_vocabulary(),
            )

    def _played(self, part: Sentences) -> Iterator[dict[str, Any]]:
        large = part.name == "MiniLM"
        measure = TokenError(most_candidates=8 if large else self.candidates, most_places=self.places)
        linear = TokenError(most_candidates=measure.most_candidates, linear=True)
        for index in range(len(part.ids)):
            exposure = part.exposure(index)
            for row, place in measure.places(exposure.batch):
                true = measure.distances(exposure, row, place)
                # Of hundreds of derivatives of millions of numbers nobody wants to wait; a shared table has no linear form.
                straight = None if large or part.loss == "causal_lm" else linear.distances(exposure, row, place)
                generator = torch.Generator().manual_seed(self.seed + 1000 * index + place)
                points = placed(true.distances)
                typical = float(true.distances[true.distances > 0].median())
                for share in NOISE:
                    std = share * typical
                    mistakes = played(points, std, self.plays, generator)
                    yield {
                        "network": part.name,
                        "sentence": index,
                        "place": place,
                        "noise": share,
                        "candidates": len(points),
                        "errors": mistakes[0],
                        "errors_at_truth": mistakes[1],
                        "least": true.least_error(std),
                        "most": true.mean_error(std),
                        "best": true.best_error(std),
                    } | _straight(straight, true, std)


def _straight(found: TokenDistances | None, true: TokenDistances, std: float) -> dict[str, Any]:
    """The numbers of the linear form, and the median of its distances over the true ones."""
    if found is None:
        return {}
    apart = true.distances > 0
    ratio = float((found.distances[apart] / true.distances[apart]).median())
    return {"linear_least": found.least_error(std), "linear_most": found.mean_error(std), "linear_ratio": ratio}


def placed(distances: Tensor) -> Tensor:
    """Points (M, k) with these distances from each other, by classical scaling: noise acts through their span alone."""
    squares = distances.double().square()
    centered = -0.5 * (squares - squares.mean(dim=0) - squares.mean(dim=1, keepdim=True) + squares.mean())
    values, vectors = torch.linalg.eigh(centered)
    points: Tensor = vectors * values.clamp_min(0.0).sqrt()
    return points


def played(points: Tensor, std: float, plays: int, generator: torch.Generator) -> tuple[int, int]:
    """Errors in so many plays of the decoder that takes the nearest point: for drawn points, and for the first one."""

    def errors(truth: Tensor) -> int:
        noise = torch.randn(plays, points.shape[1], generator=generator, dtype=points.dtype)
        return int((torch.cdist(points[truth] + std * noise, points).argmin(dim=1) != truth).sum())

    drawn = torch.randint(len(points), (plays,), generator=generator)
    return errors(drawn), errors(torch.zeros(plays, dtype=torch.int64))


def short_lines(text: str, count: int) -> list[str]:
    """The first lines of a file that hold letters."""
    lines = [line.strip() for line in Path(text).read_text(encoding="utf-8").splitlines() if line.strip()]
    return lines[:count]


def frequent_lines(text: str, count: int, length: int) -> tuple[Tensor, Vocabulary]:
    """The first tokens (n, T) of the first lines that have so many, and the vocabulary of the words that stand there."""
    tokens = (re.findall(r"\w+|[^\w\s]", line.lower())[:length] for line in short_lines(text, 10**6))
    chosen = [line for line in tokens if len(line) == length][:count]
    words = sorted({word for line in chosen for word in line})
    place = {word: index for index, word in enumerate(words)}
    return torch.tensor([[place[word] for word in line] for line in chosen]), Vocabulary(words=tuple(words))


def frozen_words(model: nn.Module) -> nn.Module:
    """The model with a public table of words, whose gradient is not shared: it would name the words at once."""
    table = max(
        (part for part in model.modules() if isinstance(part, nn.Embedding)), key=lambda one: one.num_embeddings
    )
    table.weight.requires_grad_(False)
    return model


def _judge(rows: Sequence[dict[str, Any]], plays: int) -> None:
    """Add to every row whether the numbers enclose the errors within their intervals."""
    level = 0.05 / (2 * len(rows))
    for row in rows:
        low, high = interval(row["errors"], plays, level)
        row["error"] = row["errors"] / plays
        row["enclosed"] = bool(high >= row["least"] and low <= row["most"])
        row["below_best"] = bool(interval(row["errors_at_truth"], plays, level)[0] <= row["best"])
        if "linear_least" in row:
            row["linear_enclosed"] = bool(high >= row["linear_least"] and low <= row["linear_most"])


def interval(errors: int, plays: int, level: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share that misses it with at most this probability."""
    low = 0.0 if errors == 0 else float(stats.beta.ppf(level / 2, errors, plays - errors + 1))
    high = 1.0 if errors == plays else float(stats.beta.ppf(1 - level / 2, errors + 1, plays - errors))
    return low, high


def _by_network(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    for name in dict.fromkeys(row["network"] for row in rows):
        yield name, [row for row in rows if row["network"] == name]


def _share(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    told = [row[key] for row in rows if key in row]
    return f"{sum(told)} of {len(told)}" if told else "-"


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    body = []
    for name, group in _by_network(rows):
        ratios = [row["linear_ratio"] for row in group if "linear_ratio" in row]
        ends = [f"{quantile:.2f}" for quantile in np.quantile(ratios, (0.05, 0.5, 0.95))] if ratios else ["-"] * 3
        body.append(
            [
                name,
                _share(group, "enclosed"),
                _share(group, "below_best"),
                _share(group, "linear_enclosed"),
                ", ".join(ends),
            ]
        )
    columns = (
        "network",
        "between both",
        "at the truth at most",
        "between both, linear",
        "linear / true distance: 5, 50, 95 %",
    )
    return Table(title="Exact decoders and the numbers", columns=columns, rows=body)


def _findings(rows: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for share in NOISE:
        group = [row for row in rows if row["noise"] == share]
        for key, what in (
            ("error", "error of the exact decoder"),
            ("least", "no decoder errs less"),
            ("most", "it errs at most"),
        ):
            values = [row[key] for row in group]
            quantity = f"noise {share:g} of the median distance: {what}, mean over settings"
            found.append(Finding(quantity=quantity, ours=float(np.mean(values)), n=len(values)))
    return found


def _conclusions(rows: Sequence[Mapping[str, Any]], plays: int) -> list[str]:
    return [
        f"In {_share(rows, 'enclosed')} settings the error of the exact decoder in {plays:,} plays is between both numbers, and "
        f"in {_share(rows, 'below_best')} it is at most the first number at the true token, within intervals that hold for all "
        "of them together at 95 %.",
        f"The linear form encloses it in {_share(rows, 'linear_enclosed')} settings.",
    ]
