"""Labels, the check against the whole update, and the part of each example in the first layer's gradient, for solved claims."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradleak.attacks.inversion.analytic.first_layer import FirstLayer, Watch, keeps_rows, read_first_layer
from gradleak.attacks.inversion.reading import LabelSource, claimed_labels, known_facts, known_law
from gradleak.attacks.labels.sign_rule import is_cross_entropy
from gradleak.core import Batch, DiagonalGaussian, Domain, Knowledge, Objective, Reconstruction, Update
from gradleak.results import Outcome, UnsupportedError

# More classes than that are tried only where the labels of the update are known.
_MOST_CLASSES = 100
# Round-off of what a client computed, in units: sums, and what runs through a whole network. In half formats, whose units are
# parts of the update themselves, it is fewer, and a hundredth at most.
_SUMMED, _SUMMED_HALF, _COMPUTED, _MOST = 32.0, 2.0, 1000.0, 1e-2
_HALF = 1e-4
# Pixels that are further out of their range are no example.
_BEYOND = 0.1


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One update as an attack on its first layer sees it; all tensors float64.

    Attributes:
        knowledge: of the adversary, its objective in float64.
        layer: the layer.
        tensors: the update by name.
        eps: unit of round-off of the format that the update was computed in.
        noise: standard deviation of the known noise by name; None where its law is not known.
        targets: disclosed or recovered labels, or None.
        source: where they come from.
        said: that in words.
    """

    knowledge: Knowledge
    layer: FirstLayer
    tensors: Mapping[str, Tensor]
    eps: float
    noise: Mapping[str, float] | None
    targets: Tensor | None
    source: str
    said: str

    @classmethod
    def of(cls, update: Update, knowledge: Knowledge, layer: FirstLayer) -> Case:
        """The case of an aligned update."""
        objective = knowledge.objective
        assert objective is not None
        assert knowledge.batch_size is not None
        law = known_law(knowledge.release, objective, knowledge.batch_size)
        noise: Mapping[str, float] | None = dict.fromkeys(objective.params, 0.0)
        if law is not None:
            noise = law.std if isinstance(law, DiagonalGaussian) else None
        targets, source, said = claimed_labels(update, knowledge)
        return cls(
            knowledge=_in_double(knowledge),
            layer=layer,
            tensors={name: tensor.double() for name, tensor in update.tensors.items()},
            eps=max(torch.finfo(dtype).eps for dtype in (update.dtype, objective.dtype)),
            noise=noise,
            targets=targets,
            source=source,
            said=said,
        )

    @property
    def objective(self) -> Objective:
        """The objective of the client, in float64."""
        assert self.knowledge.objective is not None
        return self.knowledge.objective

    @property
    def examples(self) -> int:
        """Size of the batch."""
        assert self.knowledge.batch_size is not None
        return self.knowledge.batch_size

    @property
    def summed(self) -> float:
        """Relative round-off of a sum over the batch."""
        return self.eps * (_SUMMED_HALF if self.eps > _HALF else _SUMMED)

    @property
    def computed(self) -> float:
        """Relative round-off of what runs through the whole model."""
        return min(_COMPUTED * self.eps, _MOST)

    @property
    def exact(self) -> bool:
        """True without noise."""
        return self.noise is not None and not any(self.noise.values())

    def std(self, name: str) -> float:
        """Standard deviation of the noise of a tensor; 0 where it is not known."""
        return 0.0 if self.noise is None else self.noise[name]

    @property
    def noise_words(self) -> str:
        """Words on what noise does to a claim, or ""."""
        return "" if self.exact else "; under noise nothing that was read is certain"

    def inputs(self, rows: Tensor) -> Tensor:
        """Examples (b, *shape) in model-input units for what the first layer is given (b, n, k)."""
        domain = self.knowledge.domain
        assert domain is not None
        return self.layer.example(rows, domain.middle(rows)[0].reshape(-1)).reshape(len(rows), *domain.shape)

    def clamped(self, inputs: Tensor) -> Tensor:
        """The same within the range of the domain."""
        assert self.knowledge.domain is not None
        low, high = self.knowledge.domain.bounds(inputs)
        return torch.minimum(torch.maximum(inputs, low), high)

    def options(self) -> Tensor | None:
        """Targets that an example may have, (c, ...): those disclosed, or all classes; None where nothing tells."""
        objective, domain = self.objective, self.knowledge.domain
        assert domain is not None
        if self.source == LabelSource.DISCLOSED.value and self.targets is not None:
            disclosed: Tensor = torch.unique(self.targets, dim=0)
            return disclosed
        classes = _classes(objective, domain)
        if classes is None:
            return None
        if classes > _MOST_CLASSES:
            recovered: Tensor | None = None if self.targets is None else torch.unique(self.targets)
            return recovered
        return torch.arange(classes, device=objective.device)

    def claim(
        self,
        inputs: Tensor,
        targets: Tensor | None,
        *,
        outcome: Outcome,
        note: str,
        details: Mapping[str, Any],
        iterations: int = 1,
        spent: float = 0.0,
    ) -> Reconstruction:
        """The reconstruction, held against the whole update where labels are known.

        Args:
            inputs: (b, *shape).
            targets: that were found with them, or None for those that were known before.
            outcome: as far as the first layer tells.
            note: how it was had.
            details: further facts.
            iterations: rounds.
            spent: plain gradients before the check.
        """
        source = self.source if targets is None else LabelSource.RECOVERED.value
        if targets is None or self.source == LabelSource.DISCLOSED.value:
            targets, source = self.targets, self.source
        residual = None
        if targets is not None:
            residual = self.residual(inputs, targets)
            spent += self.knowledge.release.protocol.plain_gradients(self.examples)
        facts = known_facts(self.knowledge, labels=source, first_order=False)
        return Reconstruction(
            inputs=inputs.detach(),
            targets=targets,
            loss=None if residual is None else residual**2,
            outcome=outcome,
            iterations=iterations,
            plain_gradients=spent,
            note="; ".join(text for text in (self.said if source == self.source else "", note) if text),
            details={
                "labels": source,
                "information": facts,
                **details,
                **({} if residual is None else {"relative_residual": residual}),
            },
        )

    def residual(self, inputs: Tensor, targets: Tensor) -> float:
        """‖g(x) − g*‖/‖g*‖ of a claim."""
        targets = targets.double() if targets.is_floating_point() else targets
        with torch.no_grad():
            made = self.knowledge.release.mean(self.objective, self.objective.params, Batch(inputs, targets))
        seen = self.objective.flatten(dict(self.tensors))
        return float((self.objective.flatten(made) - seen).norm() / seen.norm())

    def explains(self, found: Reconstruction) -> bool:
        """True if a claim explains the whole update but for round-off."""
        residual = found.details.get("relative_residual")
        return residual is not None and residual <= self.computed

    def judged(self, found: Reconstruction) -> Reconstruction:
        """A claim that the first layer alone determines: `converged`, unless something speaks against it.

        Behind random layers, and where no label is known, the rest of the update says nothing: then the claim has to be an
        example of the domain.
        """
        if "relative_residual" in found.details and not self.objective.random_layers:
            against = "" if self.explains(found) else "it does not explain the rest of the update"
        else:
            domain = self.knowledge.domain
            assert domain is not None
            assert found.inputs is not None
            inside = bool(((domain.to_pixels(found.inputs) - 0.5).abs() < 0.5 + _BEYOND).all())
            against = "" if inside else "it is out of the range of examples"
        if against:
            return replace(found, note=f"{found.note}; {against}")
        return replace(found, outcome=Outcome.CONVERGED)

    def contributions(self, inputs: Tensor, options: Tensor) -> Tensor:
        """Part that each example (m, *shape) has in the gradient at the first layer's output, for each target: (m, c, outputs).

        They are run in batches of the client's size, so that the loss weighs them as the client's does.

        **Cost**: a plain gradient for every target and batch.
        """
        found = []
        for chunk in inputs.split(self.examples):
            padded = torch.cat([chunk, chunk[-1:].expand(self.examples - len(chunk), *chunk.shape[1:])])
            outputs, result = self._run(padded)
            parts = []
            for option in options:
                targets = option.expand(self.examples, *option.shape)
                loss = self.objective.loss_of_outputs(outputs, targets)
                parts.append(torch.autograd.grad(loss, result, retain_graph=True)[0].reshape(self.examples, -1))
            found.append(torch.stack(parts, dim=1)[: len(chunk)])
        return torch.cat(found)

    def passed_back(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Part of each example of a whole batch, with its target, in the gradient at the first layer's output: (b, outputs).

        **Cost**: a plain gradient.
        """
        outputs, result = self._run(inputs)
        loss = self.objective.loss_of_outputs(outputs, targets)
        return torch.autograd.grad(loss, result)[0].reshape(len(inputs), -1)

    def _run(self, inputs: Tensor) -> tuple[Any, Tensor]:
        """The outputs of the model and of its first layer, in one graph."""
        params = {name: tensor.detach().clone().requires_grad_() for name, tensor in self.objective.params.items()}
        watch = Watch(params)
        with watch:
            outputs = self.objective.outputs(params, inputs)
        return outputs, next(call.result for call in watch.calls if call.weight == self.layer.weight)


def first_layer_for(knowledge: Knowledge, asker: str, *, whole: bool) -> FirstLayer:
    """The first layer of a model where an update keeps what it passes back; for attacks that read both.

    Args:
        knowledge: of the adversary.
        asker: who needs it, for messages.
        whole: whether the layer has to take the example as a whole, with a bias, or may take it patch by patch.

    Raises:
        UnsupportedError: naming what model or release lack.
    """
    layer = read_first_layer(knowledge, asker)
    if whole and layer.places > 1:
        raise UnsupportedError(
            f"{asker} needs a linear layer that takes the example as a whole, got {layer.weight}, which takes it at "
            f"{layer.places} places; use APRIL"
        )
    if whole and layer.bias is None:
        raise UnsupportedError(f"{asker} needs a bias beside {layer.weight}, which tells the size of its input")
    if layer.positions is None and not whole:
        raise UnsupportedError(
            f"{asker} needs a parameter that is added place by place to what {layer.weight} makes (learned positions, or the "
            "bias of a layer at one place), got none; use InvertingGradients"
        )
    held = [layer.weight, layer.bias if whole else (layer.positions or ("",))[0]]
    if not keeps_rows(knowledge, [name for name in held if name is not None]):
        raise UnsupportedError(
            f"{asker} needs sums of gradients, clipped at most, and noise at most, and this protocol or these defenses make "
            "something else of them; use GaussNewton"
        )
    return layer


def options_expected(knowledge: Knowledge, asker: str) -> int:
    """Largest number of targets that `Case.options` gives, for estimates.

    **Cost**: a forward pass of one example.
    """
    knowledge.require(("objective", "domain", "batch_size"), asker=f"the cost of {asker}")
    assert knowledge.objective is not None
    assert knowledge.domain is not None
    assert knowledge.batch_size is not None
    classes = knowledge.batch_size if knowledge.targets is not None else _classes(knowledge.objective, knowledge.domain)
    return 0 if classes is None else classes if classes <= _MOST_CLASSES else knowledge.batch_size


def _classes(objective: Objective, domain: Domain) -> int | None:
    """Number of classes of a loss of classes, else None."""
    shape = objective.output_shape(domain)
    if shape is None or not (is_cross_entropy(objective.loss_name) or objective.loss_name == "nll"):
        return None
    return shape[-1]


def _in_double(knowledge: Knowledge) -> Knowledge:
    assert knowledge.objective is not None
    return replace(knowledge, objective=knowledge.objective.to(torch.float64))
