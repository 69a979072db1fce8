"""The defender's view of one release: it holds the truth, and closed-form measures start from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradleak.core.batch import Batch
from gradleak.core.defense import Noise
from gradleak.core.domain import Domain, DomainKind
from gradleak.core.objective import Objective
from gradleak.core.release import Release
from gradleak.results import InputError


@dataclass(frozen=True, eq=False)
class Exposure:
    """An objective, the private batch and the release: x -> g(x), the released mean, with everything known.

    Attributes:
        objective: the client's loss.
        batch: the private data; all its examples together are the unknown x (d = b * example size).
        release: protocol and defenses.

    Raises:
        InputError: if an argument is of another kind (in another order), or a defense of the model that the release
            lists is not in the objective.
    """

    objective: Objective
    batch: Batch
    release: Release

    def __post_init__(self) -> None:
        """Check the kinds of the arguments, and that the model holds the defenses that the release says it holds."""
        for name, kind in (("objective", Objective), ("batch", Batch), ("release", Release)):
            given = getattr(self, name)
            if not isinstance(given, kind):
                raise InputError(
                    f"Exposure.{name}: expected a gradleak.{kind.__name__}, got {type(given).__name__}; the order is "
                    "Exposure(objective, batch, release)"
                )
        self.release.check_model(self.objective)

    @property
    def inputs(self) -> Tensor:
        """The unknown as a flat vector (d,)."""
        return self.batch.inputs.reshape(-1)

    @property
    def domain(self) -> Domain:
        """The domain of the batch.

        Raises:
            InputError: if there is none: errors in pixels mean nothing without it.
        """
        return self.batch.declared_domain()

    @property
    def noise(self) -> Noise:
        """The law of the noise on the release."""
        return self.release.noise(self.objective, examples=self.batch.size)

    def to(self, dtype: torch.dtype) -> Exposure:
        """The same exposure computed in another dtype."""
        return replace(self, objective=self.objective.to(dtype), batch=self.batch.to(dtype))

    def at_embeddings(self) -> Exposure:
        """The exposure itself; of ids that at the embeddings of their words, in units of the largest of these.

        The rows of the word table that get the gradient of the lookup are those of the true ids (`Objective.at_embeddings`).

        Raises:
            UnsupportedError: for a model that looks ids up in no `nn.Embedding`.
        """
        objective, batch = self.objective, self.batch
        if batch.domain is None or batch.domain.vocabulary is None or batch.inputs.is_floating_point():
            return self
        embedded = objective.embed(batch.inputs).detach()
        reach = float(embedded.abs().max()) or 1.0
        domain = Domain(shape=tuple(embedded.shape[1:]), low=-reach, high=reach, kind=DomainKind.SIGNAL)
        return replace(
            self, objective=objective.at_embeddings(batch.inputs), batch=Batch(embedded, batch.targets, domain)
        )

    def mean(self, flat_inputs: Tensor) -> Tensor:
        """g(x): the released mean (P,) for flat inputs (d,); pure, safe under torch.func transforms."""
        batch = self.batch.with_inputs(flat_inputs.reshape(self.batch.inputs.shape))
        return self.objective.flatten(self.release.mean(self.objective, self.objective.params, batch))

    def released_mean(self) -> Tensor:
        """g(x) at the truth, (P,)."""
        return self.mean(self.inputs)

    def pixel_scale(self) -> Tensor:
        """Factor by which each entry of x changes its pixel in [0, 1], (d,).

        Raises:
            InputError: if the batch has no domain.
        """
        return self.domain.pixel_scale(self.batch.inputs).reshape(-1).repeat(self.batch.size)

    def flat_delta(self, delta: Tensor | Mapping[str, Tensor]) -> Tensor:
        """A perturbation of the release as a vector (P,) in this exposure's dtype and parameter order.

        Raises:
            InputError: if it does not have P entries, or named tensors are not those of the parameters.
        """
        if isinstance(delta, Mapping):
            expected = {name: tuple(tensor.shape) for name, tensor in self.objective.params.items()}
            got = {name: tuple(tensor.shape) for name, tensor in delta.items()}
            if expected != got:
                wrong = sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name))
                table = "; ".join(f"{name}: expected {expected.get(name)}, got {got.get(name)}" for name in wrong)
                raise InputError(f"delta: expected one tensor a parameter, each of its shape; {table}")
        flat = self.objective.flatten(delta) if isinstance(delta, Mapping) else delta.reshape(-1)
        if flat.numel() != self.objective.size:
            raise InputError(f"delta: expected {self.objective.size} entries (the shared tensors), got {flat.numel()}")
        return flat.to(self.batch.inputs.dtype)
