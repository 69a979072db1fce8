"""Does a generator that is learned from shared gradients alone help to attack further clients?"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

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
from gradleak.studies.attack_lines import Line, Store
from gradleak.studies.prior_cells import (
    ImageSource,
    PriorAttack,
    PriorNetwork,
    PriorSetting,
    cells,
    mean,
    number,
    paired,
)
from gradleak.studies.study import Finding, Say, Study, StudyResult, Table


@dataclass(frozen=True, kw_only=True)
class GIMLQuality(Study):
    """The median gain in PSNR of GIAS on held-out clients from a generator that GIML learned from other clients' updates.

    One model with random weights; `updates` clients share the gradient of one image each, and GIML learns a generator from
    them, beginning with a DCGAN of random weights. `held` further clients are then attacked by GIAS twice, behind the
    learned generator and behind the one it began with, from the same starts and at the same cost. The difference of PSNR is
    paired by image; its median has a bootstrap interval. Learning costs plain gradients too, and the table states them:
    shared among many targets they are few, for one they are not.

    **Source**: Fang et al. 2024, the minimum-knowledge setting for CIFAR-10 and FFHQ; Jeon et al. 2021, GIML. Deviations:
    Fashion-MNIST or MNIST, a small network and generator.

    Attributes:
        images: npz or idx3 file, or None for MNIST digits.
        labels: the idx1 file beside an idx3 file.
        only: name of a boolean array of an npz file that selects images.
        first: of an idx file, the first row that may be drawn.
        updates: clients whose updates GIML gets.
        held: further clients that are attacked.
        giml: how the generator is learned.
        budget: plain gradients of GIAS, an image.
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
    giml: GIML = GIML(rounds=100, weight_rate=5e-4, latent_iterations=20)  # noqa: RUF009 (frozen)
    budget: int = 3000
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

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; minutes of one core for 500 updates of the LeNet."""
        source = ImageSource(images=self.images, labels=self.labels, only=self.only, first=self.first)
        with one_thread():
            drawn = source.draw(self.updates + self.held, self.seed)
            shape = drawn.declared_domain().shape
            initial = untrained_dcgan(
                size=shape[1], channels=shape[0], latent_size=self.latent_size, width=self.channels,
                generator=derive_generator(self.seed, "generator"),
            )  # fmt: skip
            setting = PriorSetting.make(
                network=PriorNetwork(self.network), source=source, count=self.updates + self.held,
                budget=float(self.budget), generator=initial, prior="never trained", width=self.width, seed=self.seed,
            )  # fmt: skip
            learned = self._learn(setting, initial, say)
            held = replace(setting, examples=setting.examples[self.updates :])
            store = Store(self.cells)
            behind = {"never trained": initial, "GIML": learned.generator}
            found: dict[str, list[Line]] = {}
            for name, generator in behind.items():
                if generator is not None:
                    own = generator.in_domain(drawn.declared_domain())
                    attacked = replace(held, generator=own, prior=name)
                    found[name] = cells(attacked, PriorAttack.GIAS, store, seed=self.seed)[1]
                    say(f"GIAS behind {name}: mean PSNR {number(mean([x.psnr for x in found[name]]), '.2f')} dB")
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

    def _result(self, found: dict[str, list[Line]], learned: MetaLearned) -> StudyResult:
        rows = []
        for name, lines in found.items():
            known = [line.psnr for line in lines if line.psnr is not None]
            rows.append([
                name, str(len(lines)), number(statistics.median(known) if known else None, ".2f"),
                number(mean([line.psnr for line in lines]), ".2f"), number(mean([line.ssim for line in lines]), ".3f"),
                number(mean([line.st_lpips for line in lines]), ".3g"),
                number(mean([line.counted for line in lines]), ",.0f"),
                number(learned.plain_gradients if name == "GIML" else 0.0, ",.0f"),
            ])  # fmt: skip
        gap = paired(found.get("GIML", []), found["never trained"], seed=self.seed)
        title = "GIAS behind GIML against behind a generator never trained: median PSNR difference (dB)"
        finding = Finding(quantity=title, ours=None, n=0, note="the generator could not be learned")
        said = ["No generator could be learned from these updates."]
        if gap is not None:
            finding = Finding(quantity=title, ours=gap[0], interval=gap[1], n=gap[2], note="paired by image")
            word = "better" if gap[1][0] > 0 else "worse" if gap[1][1] < 0 else "not told apart from"
            word = f"{word} than" if word in ("better", "worse") else word
            said = [
                f"Behind a generator learned from {learned.used} shared gradients GIAS is {word} behind the same network "
                f"never trained: {gap[0]:+.2f} dB at the median of {gap[2]} held-out clients ({gap[1][0]:+.2f} to "
                f"{gap[1][1]:+.2f}); learning it took {learned.plain_gradients:,.0f} plain gradients."
            ]
        columns = (
            "generator", "n", "PSNR median (dB)", "PSNR mean (dB)", "SSIM mean", "ST-LPIPS mean", "plain gradients an image",
            "plain gradients of learning",
        )  # fmt: skip
        details = {name: [asdict(line) for line in lines] for name, lines in found.items()}
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding],
            conclusion=said,
            details={**details, "giml_history": list(learned.history)},
            tables=[Table(title="Held-out clients", columns=columns, rows=rows)],
        )


__all__ = ["GIMLQuality"]
