"""Study: what noise leaves of sentences, and which numbers foresee it (figures 4 and 9 of Zhang et al. 2023)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gradleak.attacks import TAG
from gradleak.core import Exposure, HonestButCurious, Release, Update, describe, one_thread
from gradleak.defenses import GaussianNoise
from gradleak.models import minilm, transformer
from gradleak.models.minilm import minilm_obstacle
from gradleak.operators import GradientJacobian
from gradleak.protocols import FedSGD
from gradleak.results import DENG_2021, ZHANG_2023, Citation
from gradleak.risk import InversionInfluence, InversionInfluenceLowerBound, TokenDistances, TokenError
from gradleak.risk.token_error import released_means
from gradleak.scoring.text import feature_mse, score_sentence
from studies.networks.minilm import minilm_ids, minilm_vocabulary
from studies.sentence_noise_tables import conclusions, correlation_table, figures, findings, level_table
from studies.study import Say, Study, StudyResult
from studies.token_decoders import Sentences, frequent_lines, frozen_words, placed, played, short_lines

# Noise in units of the median distance between releases with different words at one place.
NOISE = (0.02, 0.1, 0.2, 0.4)
_PLAYS = 400


@dataclass(frozen=True, kw_only=True)
class Searches:
    """Amount of search in a network.

    Attributes:
        iterations: of TAG.
        draws: of noise for each sentence and level.
        decoded: sentences that are decoded word by word after TAG.
        whole: whether A is small enough for its spectrum.
        candidates: words at a place for `TokenError`; None for all.
    """

    iterations: int
    draws: int
    decoded: int
    whole: bool = True
    candidates: int | None = None


@dataclass(frozen=True, kw_only=True)
class SentenceNoise(Study):
    """Scores of sentences that TAG claims under Gaussian noise, beside I²F, its lower bound and `TokenError`.

    BERT- and GPT-like networks with random weights and the trained MiniLM classify short sentences of WikiText-2; the table of
    words is public and frozen, labels are told. Noise has four levels, in units of the median distance of two releases that
    differ by one word. Beside TAG, two decoders: one takes TAG's sentence and replaces word after word by that whose release is
    nearest while this helps; one, played, is told all other words and takes the nearest release, as `TokenError` assumes.
    Rank correlations are taken over everything, and within each level of noise, since σ alone makes most of the former.

    Attributes:
        text: sentences, one a line.
        sentences: of each random network; 0 leaves these out.
        length: tokens of a sentence, the first ones of a line.
        iterations: of TAG.
        draws: of noise for each sentence and level.
        decoded: sentences of each random network that are decoded after TAG.
        large: sentences of MiniLM; 0 leaves it out.
        large_iterations: of TAG on MiniLM.
        std: of the random weights.
        seed: of all draws.
    """

    name: ClassVar[str] = "sentence_noise"
    source: ClassVar[str] = "figures 4 and 9"
    citations: ClassVar[tuple[Citation, ...]] = (ZHANG_2023, DENG_2021)

    text: str
    sentences: int = 20
    length: int = 8
    iterations: int = 150
    draws: int = 2
    decoded: int = 6
    large: int = 4
    large_iterations: int = 60
    std: float = 0.1
    seed: int = 0

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; about a quarter of an hour of one core."""
        rows: list[dict[str, Any]] = []
        with one_thread():
            for part, searches in self._networks():
                rows += self._measured(part, searches, say)
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings(rows),
            conclusion=conclusions(rows),
            details={"rows": rows},
            tables=[*correlation_table(rows), level_table(rows)],
            figures=figures(rows),
        )

    def _networks(self) -> Iterator[tuple[Sentences, Searches]]:
        if self.sentences:
            yield from self._drawn()
        if minilm_obstacle() is None and self.large:
            yield self._trained()

    def _drawn(self) -> Iterator[tuple[Sentences, Searches]]:
        ids, vocabulary = frequent_lines(self.text, self.sentences, self.length)
        small = Searches(iterations=self.iterations, draws=self.draws, decoded=self.decoded)
        for name, causal in (("BERT-like", False), ("GPT-like", True)):
            generator = torch.Generator().manual_seed(self.seed)
            model = transformer(
                words=vocabulary.size, length=self.length, causal=causal, std=self.std, generator=generator
            )
            yield Sentences(name=name, model=frozen_words(model.eval()), ids=ids, vocabulary=vocabulary), small

    def _trained(self) -> tuple[Sentences, Searches]:
        encoder = Sentences(
            name="MiniLM",
            model=frozen_words(minilm(generator=torch.Generator().manual_seed(self.seed))),
            ids=minilm_ids(short_lines(self.text, self.large), length=self.length),
            vocabulary=minilm_vocabulary(),
        )
        return encoder, Searches(iterations=self.large_iterations, draws=1, decoded=0, whole=False, candidates=8)

    def _measured(self, part: Sentences, searches: Searches, say: Say) -> list[dict[str, Any]]:
        exposures = [part.exposure(index) for index in range(len(part.ids))]
        measure = TokenError(most_candidates=searches.candidates or part.vocabulary.size, most_places=self.length)
        apart = [[measure.distances(one, *place) for place in measure.places(one.batch)] for one in exposures]
        typical = float(torch.tensor([_typical(one) for places in apart for one in places]).median())
        say(f"{part.name}: the median distance of two releases is {typical:.3g}")
        # Searches first, side by side, so that one derivative at a time is held afterwards.
        sent: list[tuple[float, int, list[Exposure], list[Update], list[Tensor]]] = []
        for share in NOISE:
            release = Release(FedSGD(), [GaussianNoise(std=share * typical)])
            noisy = [replace(one, release=release) for one in exposures]
            for draw in range(searches.draws):
                seeds = [self.seed + 10_000 * draw + index for index in range(len(noisy))]
                updates = [
                    one.release(one.objective, one.batch, torch.Generator().manual_seed(seed))
                    for one, seed in zip(noisy, seeds, strict=True)
                ]
                sent.append((share, draw, noisy, updates, _claims(noisy, updates, seeds, searches.iterations)))
                say(f"{part.name}: noise {share:g}, draw {draw}: {len(updates)} sentences were searched")
        rows: list[dict[str, Any]] = []
        for index, exposure in enumerate(exposures):
            operator = GradientJacobian(exposure.at_embeddings())
            for share, draw, noisy, updates, claims in sent:
                one, update, claim, std = noisy[index], updates[index], claims[index], share * typical
                rows.append(
                    {"network": part.name, "sentence": index, "noise": share, "std": std, "draw": draw}
                    | self._predicted(one, update, operator, apart[index], std, searches.whole)
                    | _scored(part.model, part.ids[index], claim, part.vocabulary.uncounted)
                )
                if draw == 0:
                    rows[-1] |= _told_neighbors(apart[index], std, self.seed + index)
                    if index < searches.decoded:
                        rows[-1]["decoder_error"] = _error(part.ids[index], decoded(one, update, claim))
        say(f"{part.name}: {len(rows)} releases were measured")
        return rows

    def _predicted(
        self,
        exposure: Exposure,
        update: Update,
        operator: GradientJacobian,
        apart: Sequence[TokenDistances],
        std: float,
        whole: bool,
    ) -> dict[str, Any]:
        delta = exposure.objective.flatten(update.tensors).double() - exposure.to(torch.float64).released_mean()
        bound = InversionInfluenceLowerBound(tolerance=1e-3)(exposure, delta=delta, operator=operator).value
        found = {
            "influence_bound": bound,
            "influence": InversionInfluence()(exposure, delta=delta, operator=operator).value if whole else None,
            "token_error_bound": sum(one.best_error(std) for one in apart) / len(apart),
            "nearest_pair": sum(float(one.confusions(std)[one.truth].max()) for one in apart) / len(apart),
        }
        return found | ({"linear_nearest": nearest_by_least_squares(exposure, operator, std)} if whole else {})


def _typical(found: TokenDistances) -> float:
    return float(found.distances[found.distances > 0].median())


def _claims(
    exposures: Sequence[Exposure], updates: Sequence[Update], seeds: Sequence[int], iterations: int
) -> list[Tensor]:
    """TAG's words (T,) of every sentence; -1 where it has none."""
    known = [HonestButCurious(targets=True).disclose(one.objective, one.release, one.batch) for one in exposures]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    found = TAG(iterations=iterations).many(updates, known, generators=generators)
    return [
        torch.full_like(one.batch.inputs[0], -1) if claim.tokens is None else claim.tokens[0]
        for one, claim in zip(exposures, found, strict=True)
    ]


def decoded(exposure: Exposure, update: Update, start: Tensor, *, sweeps: int = 4) -> Tensor:
    """A sentence (T,) whose words were replaced one by one by that whose release is nearest to the update, while this helps.

    Args:
        exposure: knows the model and the shape of the sentence; its words are not looked at.
        update: the noisy release.
        start: a sentence to begin with.
        sweeps: over all places, at most.
    """
    vocabulary = exposure.domain.vocabulary
    assert vocabulary is not None
    words = [word for word in range(vocabulary.size) if vocabulary.ordinary(word)]
    seen = exposure.objective.flatten(update.tensors)
    claim, best = start.clamp_min(0)[None].clone(), torch.inf
    for _ in range(sweeps):
        before = claim.clone()
        for place in range(claim.shape[1]):
            there = replace(exposure, batch=replace(exposure.batch, inputs=claim))
            misfit = (released_means(there, 0, place, words) - seen).square().sum(dim=1)
            if float(misfit.min()) < best:
                best = float(misfit.min())
                claim[0, place] = words[int(misfit.argmin())]
        if torch.equal(claim, before):
            break
    return claim[0]


def nearest_by_least_squares(exposure: Exposure, operator: GradientJacobian, std: float, *, draws: int = 64) -> float:
    """Token error of an attacker who solves for embeddings to first order and takes the word at the smallest angle.

    Errors of embeddings are drawn from N(0, σ²(AᵀA)⁺); means of embeddings, which layer normalization hides, are taken off.
    """
    ids = exposure.batch.inputs
    weights = {**exposure.objective.frozen, **exposure.objective.params}
    tables = exposure.objective.token_tables(ids.shape[1])
    assert tables is not None
    table = weights[tables.word].double()
    spectrum = operator.spectrum
    kept = spectrum.values > spectrum.threshold
    root = spectrum.vectors[:, kept] / spectrum.values[kept].sqrt()
    generator = torch.Generator().manual_seed(0)
    errors = root @ torch.randn(int(kept.sum()), draws, generator=generator, dtype=root.dtype) * std
    moved = table[ids[0]] + errors.T.reshape(draws, ids.shape[1], -1)

    def direction(rows: Tensor) -> Tensor:
        return nn.functional.normalize(rows - rows.mean(dim=-1, keepdim=True), dim=-1)

    taken = (direction(moved) @ direction(table).T).argmax(dim=2)
    return float((taken != ids[0]).double().mean())


def _told_neighbors(apart: Sequence[TokenDistances], std: float, seed: int) -> dict[str, Any]:
    """The error of the exact decoder that is told all other words, at the true ones."""
    generator = torch.Generator().manual_seed(seed)
    errors = [played(placed(one.distances), std, _PLAYS, generator)[1] / _PLAYS for one in apart]
    return {"exact_error": sum(errors) / len(errors)}


def _error(truth: Tensor, claim: Tensor) -> float:
    return 1.0 - score_sentence(truth.tolist(), claim.tolist()).in_place


def _scored(model: nn.Module, truth: Tensor, claim: Tensor, apart: frozenset[int]) -> dict[str, Any]:
    """The scores of TAG's sentence."""
    score = score_sentence(truth.tolist(), claim.tolist(), apart=apart)
    reader = copy.copy(model)
    reader._modules = {**model._modules, "head": nn.Identity()}
    with torch.no_grad():
        features = [reader(ids.clamp_min(0)[None]) for ids in (truth, claim)]
    return {
        "rouge_1": score.rouge_1.f,
        "rouge_l": score.rouge_l.f,
        "google_bleu": score.google_bleu,
        "tag_error": 1.0 - score.in_place,
        "feature_mse": feature_mse(*features),
    }


__all__ = ["NOISE", "SentenceNoise", "decoded", "nearest_by_least_squares"]
