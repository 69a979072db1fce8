"""Study: attacks behind a generator on batches, by size, by local steps, and behind labels of two label attacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch

from gradleak.attacks import (
    AdaptiveLabelRecovery,
    Attack,
    InvertingGradients,
    LabelAttack,
    LocalTraining,
    ZeroShotLabels,
)
from gradleak.core import (
    Batch,
    Knowledge,
    Release,
    Update,
    derive_generator,
    describe,
    one_thread,
)
from gradleak.protocols import FedAvg, FedSGD
from gradleak.results import (
    FANG_2024,
    JEON_2021,
    YIN_2021,
    Citation,
    InputError,
    check_positive,
)
from gradleak.scoring import score_images
from studies.attack_lines import Line
from studies.generator_figures import loss_curves, quality_over
from studies.generator_study import GeneratorStudy
from studies.label_batches import different_labels, places_with, unbalanced_labels
from studies.prior_cells import (
    PriorAttack,
    PriorNetwork,
    PriorSetting,
    bought,
    content_of_tensors,
    curve,
    mean_psnr,
    paired,
)
from studies.store import Store, content_of
from studies.study import Finding, Say, StudyResult, Table
from studies.summaries import shown

SIZES, STEPS, LABELS = "batch size", "local steps", "batch size, half of one class"
RULES: Mapping[str, LabelAttack] = {
    "ALR": AdaptiveLabelRecovery(minimum_confidence=0.0),
    "ZLR": ZeroShotLabels(minimum_confidence=0.0),
}
"""Label attacks of figure 8, each with the claim of its paper, whatever its own confidence."""


@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One way to attack one kind of release.

    Attributes:
        part: figure that it belongs to, by what the horizontal axis counts.
        count: place on that axis.
        way: how the line is called.
        entrant: attack.
        attack: by scale.
        release: of the clients.
        batches: one a client.
        rule: label attack whose claim the inversion is given; None where it reads labels itself.
    """

    part: str
    count: int
    way: str
    entrant: PriorAttack
    attack: Callable[[float], Attack]
    release: Release
    batches: Sequence[Batch]
    rule: LabelAttack | None = None


@dataclass(frozen=True, kw_only=True)
class GeneratorBatches(GeneratorStudy):
    """Mean PSNR of attacks on batches at equal cost in plain gradients of a batch, by three settings.

    By batch size: images of different classes, one undefended gradient, labels read by the attack itself. By local steps:
    the delta of T whole-batch steps, read as the average gradient (AGA) by all, and with all steps unrolled (FA) by IG,
    which then buys T times fewer iterations. By label attack: half of a batch is of one class, a quarter of another, and
    the inversion is given what adaptive label recovery (ALR) or the zero-shot rule (ZLR) claims. Claims are paired one
    to one with the images; each image counts, of PSNR with at most 100 dB.

    **Source**: Fang et al. 2024, figures 3 (CIFAR-100, ImageNet), 7 (CIFAR-10, batches of 8, up to 8 steps) and 8
    (CIFAR-100, ImageNet), which have pictures and no numbers. Deviations: small networks and generators, few batches,
    budgets that a CPU carries; FA at the cost of AGA, where the paper gives both the same iterations.

    Attributes:
        pool: images that batches are drawn from.
        sizes: batch sizes, none for leaving that part out.
        steps: numbers T of local steps, likewise.
        step_size: images a batch there.
        learning_rate: of the local steps.
        label_sizes: batch sizes of the third part, likewise.
        batches: batches a setting.
        attacks: by batch size.
        network: which network.
        budget: plain gradients of a batch.
    """

    name: ClassVar[str] = "generator_batches"
    source: ClassVar[str] = "figures 3, 7 and 8, at small scale"
    citations: ClassVar[tuple[Citation, ...]] = (FANG_2024, JEON_2021, YIN_2021)

    pool: int = 200
    sizes: Sequence[int] = (2, 4, 8)
    steps: Sequence[int] = (1, 2, 4, 8)
    step_size: int = 4
    learning_rate: float = 0.01
    label_sizes: Sequence[int] = (4, 8)
    batches: int = 2
    attacks: Sequence[PriorAttack] = (PriorAttack.IGIMS, PriorAttack.GIAS, PriorAttack.INVERTING_GRADIENTS)
    network: PriorNetwork = PriorNetwork.LENET
    budget: int = 3000

    def __post_init__(self) -> None:
        """Check the numbers before hours are spent.

        Raises:
            InputError: naming the setting.
        """
        super().__post_init__()
        self._check_counts("pool", "step_size", "batches", "sizes", "steps", "label_sizes")
        self._check_members("attacks", PriorAttack)
        if not (self.sizes or self.steps or self.label_sizes):
            raise InputError(f"{self.name}: expected sizes, steps or label_sizes, got none of them")
        check_positive(f"{self.name}.learning_rate", self.learning_rate)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; with the defaults some 40 minutes of one core."""
        pool = self.image_source().draw(self.pool, self.seed)
        setting = self.setting(self.network, behind=self.behind(), count=1)
        found: dict[str, dict[str, dict[int, list[Line]]]] = {}
        with Store(self.cells) as store, one_thread():
            for cell in self._planned(pool):
                lines = self._lines(cell, setting, store)
                if lines:
                    found.setdefault(cell.part, {}).setdefault(cell.way, {})[cell.count] = lines
                    say(f"{cell.way}, {cell.part} {cell.count}: mean PSNR {shown(mean_psnr(lines), '.2f')} dB")
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[
                self._finding(part, way, count, lines)
                for part, ways in found.items()
                for way, counts in ways.items()
                for count, lines in counts.items()
            ],
            conclusion=self._conclude(found),
            details={
                f"{part} {count}, {way}": [asdict(line) for line in lines]
                for part, ways in found.items()
                for way, counts in ways.items()
                for count, lines in counts.items()
            },
            tables=[_table(part, ways) for part, ways in found.items()],
            figures=_figures(found),
        )

    def _planned(self, pool: Batch) -> Iterator[_Cell]:
        """All cells in the order of their figures."""
        igims, pixels = PriorAttack.IGIMS, PriorAttack.INVERTING_GRADIENTS
        for size in self.sizes:
            batches = different_labels(pool, batches=self.batches, size=size, asker=self.name)
            for entrant in map(PriorAttack, self.attacks):
                yield _Cell(
                    part=SIZES, count=size, way=entrant.value, entrant=entrant, attack=entrant.attack,
                    release=Release(FedSGD()), batches=batches,
                )  # fmt: skip
        for steps in self.steps:
            batches = different_labels(pool, batches=self.batches, size=self.step_size, asker=self.name)
            release = Release(FedAvg(learning_rate=self.learning_rate, epochs=steps))
            for way, entrant, local in (
                ("igims, AGA", igims, LocalTraining.AVERAGE_GRADIENT),
                ("inverting_gradients, AGA", pixels, LocalTraining.AVERAGE_GRADIENT),
                ("inverting_gradients, FA", pixels, LocalTraining.UNROLLED),
            ):
                yield _Cell(
                    part=STEPS, count=steps, way=way, entrant=entrant, attack=_reading(entrant, local), release=release,
                    batches=batches,
                )  # fmt: skip
        for size in self.label_sizes:
            batches = [self._unbalanced(pool, size, number) for number in range(self.batches)]
            for way, entrant, rule in (("igims", igims, "ALR"), ("igims", igims, "ZLR"), (pixels.value, pixels, "ZLR")):
                yield _Cell(
                    part=LABELS, count=size, way=f"{way}, {rule}", entrant=entrant, attack=entrant.attack,
                    release=Release(FedSGD()), batches=batches, rule=RULES[rule],
                )  # fmt: skip

    def _unbalanced(self, pool: Batch, size: int, number: int) -> Batch:
        """A batch with the labels of the ALR paper, no image twice."""
        generator = derive_generator(self.seed, "batch", str(size), str(number))
        labels = unbalanced_labels(size, pool.targets.unique(), generator)
        order = torch.randperm(pool.size, generator=generator)
        rows = order[places_with(pool.targets[order], labels, asker=self.name)]
        return pool.rows(rows)

    def _lines(self, cell: _Cell, setting: PriorSetting, store: Store) -> list[Line]:
        """A line an image, batch by batch."""
        lines: list[Line] = []
        for number, batch in enumerate(cell.batches):
            facts = setting.threat(cell.entrant).disclose(setting.objective, cell.release, batch)
            attack = bought(cell.attack, facts, float(self.budget))
            key = self._key(cell, setting, attack, batch, number)

            def compute(
                attack: Attack = attack, facts: Knowledge = facts, batch: Batch = batch, number: int = number,
                key: dict[str, Any] = key,
            ) -> list[Line]:  # fmt: skip
                return self._attacked(cell, setting, attack, facts, batch, number, store, key)

            kept = store.kept(key, list[Line], compute) if self.compute else store.get(key, list[Line])
            lines += [replace(line, image=number * batch.size + line.image) for line in kept or []]
        return lines

    def _key(self, cell: _Cell, setting: PriorSetting, attack: Attack, batch: Batch, number: int) -> dict[str, Any]:
        behind = cell.entrant.needs_generator and setting.generator is not None
        return {
            "study": self.name,
            "content": content_of([batch]),
            "network": setting.network.value,
            "shared_entries": setting.objective.size,
            "attack": describe(attack),
            "release": describe(cell.release),
            "rule": None if cell.rule is None else describe(cell.rule),
            "generator": content_of_tensors(setting.generator) if behind and setting.generator is not None else None,
            "seed": self.seed,
            "number": number,
        }

    def _attacked(
        self,
        cell: _Cell,
        setting: PriorSetting,
        attack: Attack,
        facts: Knowledge,
        batch: Batch,
        number: int,
        store: Store,
        key: dict[str, Any],
    ) -> list[Line]:
        update = cell.release(setting.objective, batch, derive_generator(self.seed, "release", str(number)))
        labels = "read by the attack"
        if cell.rule is not None:
            facts, labels = _given(cell.rule, update, facts, batch)
        generator = derive_generator(self.seed, "attack", cell.part, str(number))
        found = attack(update, facts, generator=generator, checkpoint=store.checkpoint(key))
        scores = {score.name: score for score in score_images(found, batch)}
        nothing = [None] * batch.size
        by_image = {name: scores[name].details.get("per_example", nothing) for name in ("mse", "ssim", "exact_hits")}
        return [
            Line(
                image=place,
                mse=by_image["mse"][place],
                ssim=by_image["ssim"][place],
                exact=bool(by_image["exact_hits"][place]),
                outcome=found.outcome.label,
                labels=labels,
                iterations=found.iterations,
                counted=found.plain_gradients,
                measured=None,
                loss=found.loss,
                history=curve(found, attack),
            )
            for place in range(batch.size)
        ]

    def _finding(self, part: str, way: str, count: int, lines: list[Line]) -> Finding:
        labels = sorted({line.labels for line in lines})
        return Finding(
            quantity=f"{way}, {part} {count}: mean PSNR (dB)",
            ours=mean_psnr(lines),
            n=len(lines),
            note=f"{lines[0].counted:,.0f} plain gradients of a batch; labels: {', '.join(labels)}",
        )

    def _conclude(self, found: Mapping[str, Mapping[str, Mapping[int, list[Line]]]]) -> list[str]:
        """Every pair of ways at every place: who is better by the paired median over images."""
        said = []
        for part, ways in found.items():
            names = list(ways)
            for place, one in enumerate(names):
                for other in names[place + 1 :]:
                    for count in sorted(ways[one].keys() & ways[other].keys()):
                        gap = paired(ways[one][count], ways[other][count], seed=self.seed)
                        if gap is not None:
                            median, (low, high), images = gap
                            said.append(
                                f"{part} {count}: {one} - {other} {median:+.1f} dB ({low:.1f} to {high:.1f}, {images} images)."
                            )
        return said


def _reading(entrant: PriorAttack, local: LocalTraining) -> Callable[[float], Attack]:
    """The attack by scale, with local steps read in this way."""

    def attack(scale: float) -> Attack:
        made = entrant.attack(scale)
        return replace(made, local_training=local) if isinstance(made, InvertingGradients) else made

    return attack


def _given(rule: LabelAttack, update: Update, facts: Knowledge, batch: Batch) -> tuple[Knowledge, str]:
    """Knowledge with the labels that a label attack claims, and how many of them are right."""
    claimed = rule(update, replace(facts, generator=None)).targets
    if claimed is None:
        return facts, "none claimed"
    classes = int(max(claimed.max(), batch.targets.max())) + 1
    right = torch.minimum(claimed.bincount(minlength=classes), batch.targets.bincount(minlength=classes)).sum()
    return replace(facts, targets=claimed), f"{int(right)} of {batch.size} right"


def _table(part: str, ways: Mapping[str, Mapping[int, list[Line]]]) -> Table:
    counts = sorted({count for by_count in ways.values() for count in by_count})
    rows = [
        [way, *(shown(mean_psnr(by_count[count]) if count in by_count else None, ".2f") for count in counts)]
        for way, by_count in ways.items()
    ]
    return Table(title=f"Mean PSNR (dB) by {part}", columns=("attack", *map(str, counts)), rows=rows)


def _figures(found: Mapping[str, Mapping[str, Mapping[int, list[Line]]]]) -> dict[str, str]:
    quality = quality_over({
        part: {
            way: [(float(count), value) for count, lines in counts.items() if (value := mean_psnr(lines)) is not None]
            for way, counts in ways.items()
        }
        for part, ways in found.items()
    })  # fmt: skip
    by_size = found.get(SIZES, {})
    losses = loss_curves({
        f"batches of {count}": {way: counts[count] for way, counts in by_size.items() if count in counts}
        for count in sorted({count for counts in by_size.values() for count in counts})
    })  # fmt: skip
    return {name: svg for name, svg in (("generator_batches", quality), ("generator_batches_losses", losses)) if svg}


__all__ = ["GeneratorBatches"]
