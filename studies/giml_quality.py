"""Does a generator that is learned from shared gradients alone help to attack further clients?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, ClassVar

from gradleak.attacks import GIML, MetaLearned
from gradleak.core import (
    Batch,
    HonestButCurious,
    ImageGenerator,
    Objective,
    Release,
    derive_generator,
    describe,
    one_thread,
)
from gradleak.models.generators import untrained_dcgan
from gradleak.protocols import FedSGD
from gradleak.results import FANG_2024, JEON_2021, Citation, InputError
from studies.attack_lines import Line
from studies.prior_cells import ImageSource, PriorAttack, PriorNetwork, PriorSetting, cells, mean, paired
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import shown

NEVER, LEARNED = "never trained", "GIML"


@dataclass(frozen=True, kw_only=True)
class GIMLQuality(Study):
    """The median gain in PSNR of GIAS on held-out clients from a generator that GIML learned from other clients' updates.

    One model with random weights; `updates` clients share the gradient of one image each, and GIML learns a generator from
    them, beginning with a DCGAN of random weights. `held` further clients are then attacked by GIAS twice, behind the
    learned generator and behind the one it began with, from the same starts and at the same cost, once for every budget.
    The difference of PSNR is paired by image; its median has a bootstrap interval. Learning costs plain gradients too,
    and the table states them: shared among many targets they are few, for one they are not.

    **Source**: Fang et al. 2024, the minimum-knowledge setting for CIFAR-10 and FFHQ; Jeon et al. 2021, GIML. Deviations:
    Fashion-MNIST or MNIST, a small network and generator.

    Attributes:
        images: npz or idx3 file, or None for MNIST digits.
        labels: the idx1 file beside an idx3 file.
        only: name of a boolean array of an npz file that selects images.
        first: the first row that may be drawn.
        updates: clients whose updates GIML gets.
        held: further clients that are attacked.
        giml: how the generator is learned.
        budgets: plain gradients of GIAS, an image; each is a comparison of its own.
        network: under attack.
        width: of the ConvNet.
        latent_size: of the generator.
        channels: of the generator before its last layer.
        seed: of images, weights and starts.
        cells: file that keeps a line as soon as its attack ends; the generator is learned again.
    """

    name: ClassVar[str] = "giml_quality"
    source: ClassVar[str] = "the minimum-knowledge setting of the experiments"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, JEON_2021)

    images: str | None = None
    labels: str | None = None
    only: str | None = None
    first: int = 0
    updates: int = 500
    held: int = 20
    giml: GIML = GIML()  # noqa: RUF009 (frozen)
    budgets: Sequence[int] = (450, 900, 3000)
    network: PriorNetwork = PriorNetwork.LENET
    width: int = 16
    latent_size: int = 32
    channels: int = 16
    seed: int = 0
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the counts."""
        if self.updates < 1 or self.held < 2:
            raise InputError(
                f"GIMLQuality: expected at least 1 update and 2 held-out clients, got {self.updates} and {self.held}"
            )
        if not self.budgets or min(self.budgets) < 1:
            raise InputError(f"GIMLQuality.budgets: expected plain gradients of at least 1, got {list(self.budgets)}")

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; minutes of one core for 500 updates of the LeNet."""
        source = ImageSource(images=self.images, labels=self.labels, only=self.only, first=self.first)
        with Store(self.cells) as store, one_thread():
            drawn = source.draw(self.updates + self.held, self.seed)
            shape = drawn.declared_domain().shape
            initial = untrained_dcgan(
                size=shape[1], channels=shape[0], latent_size=self.latent_size, width=self.channels,
                generator=derive_generator(self.seed, "generator"),
            )  # fmt: skip
            setting = PriorSetting.make(
                network=PriorNetwork(self.network), source=source, count=self.updates + self.held,
                budget=float(max(self.budgets)), generator=initial, prior="never trained", width=self.width, seed=self.seed,
            )  # fmt: skip
            learned = self._learn(setting, initial, say)
            held = replace(setting, examples=setting.examples[self.updates :])
            behind = {NEVER: initial, LEARNED: learned.generator}
            found: dict[int, dict[str, list[Line]]] = {budget: {} for budget in self.budgets}
            for budget, (name, generator) in product(self.budgets, behind.items()):
                if generator is not None:
                    own = generator.in_domain(drawn.declared_domain())
                    attacked = replace(held, generator=own, prior=name, budget=float(budget))
                    lines = cells(attacked, PriorAttack.GIAS, store, seed=self.seed)[1]
                    found[budget][name] = lines
                    mean_psnr = shown(mean([line.psnr for line in lines]), ".2f")
                    say(f"GIAS behind {name}, {budget:,} plain gradients: mean PSNR {mean_psnr} dB")
        return self._result(found, learned)

    def _learn(self, setting: PriorSetting, initial: ImageGenerator, say: Say) -> MetaLearned:
        release, threat = Release(FedSGD()), HonestButCurious()
        objective: Objective = setting.objective
        clients: list[Batch] = list(setting.examples[: self.updates])
        updates = [release(objective, one, derive_generator(self.seed, "release", "0")) for one in clients]
        known = threat.disclose(objective, release, clients[0])

        def tell(done: int, planned: int, loss: float) -> None:
            if done % 10 == 0 or done == planned:
                say(f"GIML: round {done} of {planned}, matching loss {loss:.3g}")

        return self.giml.fit(updates, known, initial, generator=derive_generator(self.seed, "giml"), progress=tell)

    def _result(self, found: dict[int, dict[str, list[Line]]], learned: MetaLearned) -> StudyResult:
        rows = [
            _row(budget, name, lines, learned.plain_gradients if name == LEARNED else 0.0)
            for budget, both in found.items()
            for name, lines in both.items()
        ]
        findings, said = [], []
        for budget, both in found.items():
            gap = paired(both.get(LEARNED, []), both[NEVER], seed=self.seed)
            title = f"GIAS behind GIML against behind one never trained, {budget:,} plain gradients: median PSNR (dB)"
            if gap is None:
                why = "the generator could not be learned" if learned.generator is None else "too few images"
                findings.append(Finding(quantity=title, ours=None, n=0, note=why))
                continue
            findings.append(Finding(quantity=title, ours=gap[0], interval=gap[1], n=gap[2], note="paired by image"))
            word = "better" if gap[1][0] > 0 else "worse" if gap[1][1] < 0 else "not told apart"
            said.append(
                f"At {budget:,} plain gradients an image: {word}, {gap[0]:+.2f} dB at the median of {gap[2]} held-out "
                f"clients ({gap[1][0]:+.2f} to {gap[1][1]:+.2f})."
            )
        first = "No generator could be learned from these updates."
        if learned.generator is not None:
            first = (
                f"GIAS behind a generator learned from {learned.used} shared gradients, against the same network never "
                f"trained; learning it took {learned.plain_gradients:,.0f} plain gradients."
            )
        columns = (
            "budget", "generator", "n", "PSNR median (dB)", "PSNR mean (dB)", "SSIM mean", "ST-LPIPS mean",
            "plain gradients an image", "plain gradients of learning",
        )  # fmt: skip
        details: dict[str, Any] = {
            f"{name}, {budget}": [asdict(line) for line in lines]
            for budget, both in found.items()
            for name, lines in both.items()
        }
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=findings,
            conclusion=[first, *said],
            details={**details, "giml_history": list(learned.history)},
            tables=[Table(title="Held-out clients", columns=columns, rows=rows)],
        )


def _row(budget: int, name: str, lines: Sequence[Line], learning: float) -> list[str]:
    known = [line.psnr for line in lines if line.psnr is not None]
    return [
        f"{budget:,}", name, str(len(lines)), shown(statistics.median(known) if known else None, ".2f"),
        shown(mean([line.psnr for line in lines]), ".2f"), shown(mean([line.ssim for line in lines]), ".3f"),
        shown(mean([line.st_lpips for line in lines]), ".3g"), shown(mean([line.counted for line in lines]), ",.0f"),
        shown(learning, ",.0f"),
    ]  # fmt: skip


__all__ = ["GIMLQuality"]
