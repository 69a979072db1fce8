"""Examples of a batch from single rows of the first linear layer's gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from gradleak.attacks.attack import Attack, Monitor
from gradleak.attacks.inversion.analytic.claims import Case, first_layer_for, options_expected
from gradleak.attacks.inversion.analytic.first_layer import keeps_scale
from gradleak.attacks.inversion.problem import NEEDS
from gradleak.attacks.inversion.reading import LabelSource
from gradleak.core import Knowledge, Reconstruction, Update
from gradleak.results import GEIPING_2020, PHONG_2018, Citation, Outcome

# Rows whose quotient is off by more than this share of it tell nothing.
_LOOSE = 0.02
# A claim is certain from so many digits of agreement on, beyond those that the number of trials makes likely.
_DIGITS = 6.0
# Times all examples are refined together, and how far off, beside the median, a row is left out there.
_REFINEMENTS, _WRONG_SIDE = 5, 10.0
# Rounds that a batch is expected to take: seen were two to ten.
_ROUNDS = 10
_ASKER = "the attack linear_rows"


@dataclass(frozen=True, kw_only=True)
class LinearRows(Attack):
    """Examples as quotients of rows, ∂L/∂W[i] / ∂L/∂b[i], of a linear layer with a bias that reads the example itself.

    With δ_k the gradient at the layer's output for example k, row i of ∂L/∂W is Σ_k δ_k[i] x_k and of ∂L/∂b Σ_k δ_k[i]. A unit
    that one example alone sends something back through (a ReLU that is off for all others) has that example as its quotient;
    any other unit has a mixture.

    - *One example*: every row has the same quotient, whatever the model does behind the layer.
    - *A batch*: rows with the same quotient are one candidate. A candidate is certain where the model, run on it, passes back
      for one of the classes what ∂L/∂b says in those rows. What it adds to all rows is then taken off, which leaves other
      examples alone in further rows, and so on; in the end all examples are refined together, X = Δ⁺ ∂L/∂W.

    Behind a layer whose units never are silent (tanh, sigmoid, GELU) no row of a batch has one example alone: nothing is
    certain then, and the claim is a mixture.

    Outcomes: `converged` for one example whose rows agree to round-off and which explains the whole update (where its label is
    disclosed or recovered; elsewhere it has to lie in the range of examples), or where every example of the batch was found and
    together they explain the update; `not_identifiable` elsewhere, with the number of examples that are certain in the note.
    Under noise nothing is certain; the rows with most signal count most.

    **Assumptions**: a linear layer with bias on the example as a whole (scaled or shifted entry by entry before). The update is
    a sum of gradients: clipping (of the update, of examples, or of whole layers) and local steps of plain SGD leave quotients as
    they are, but hide the scale, so that candidates of a batch are only those that several rows agree on.

    **Cost**: one plain gradient for the check at the end; for a batch of b up to c more a round for each b candidates, with c
    classes, and up to five to refine. Four forward passes and one gradient that read the model are not counted.

    **Source**: Phong et al. 2018 (one example), Geiping et al. 2020, proposition 3.1. Batches by agreement, the check of
    candidates, and taking them off one after the other are ours.

    Attributes:
        rounds: of finding candidates and taking them off, at most.
    """

    name: ClassVar[str] = "linear_rows"
    needs: ClassVar[tuple[str, ...]] = NEEDS
    citations: ClassVar[tuple[Citation, ...]] = (PHONG_2018, GEIPING_2020)
    summary: ClassVar[str] = "Examples as quotients of single rows of a first linear layer with bias, of batches, too."

    rounds: int = 20

    def estimate(self, knowledge: Knowledge) -> float:
        """One plain gradient for one example; ten rounds of one a class for a batch, of which nobody knows how many it takes."""
        classes = options_expected(knowledge, _ASKER)
        return 1.0 if knowledge.batch_size == 1 else _ROUNDS * classes + _REFINEMENTS + 1.0

    def _check(self, knowledge: Knowledge) -> None:
        first_layer_for(knowledge, _ASKER, whole=True)

    def _recover(
        self, update: Update, knowledge: Knowledge, generator: torch.Generator, monitor: Monitor
    ) -> Reconstruction:
        del generator
        case = Case.of(update, knowledge, first_layer_for(knowledge, _ASKER, whole=True))
        rows = Rows.of(case)
        if not bool(rows.told.any()):
            return _nothing(case)
        return self._one(case, rows) if case.examples == 1 else self._batch(case, rows, monitor)

    def _one(self, case: Case, rows: Rows) -> Reconstruction:
        x = rows.mean()
        missed = float((rows.matrix - rows.bias[:, None] * x).norm() / rows.matrix.norm())
        count = int(rows.told.sum())
        agree = count > 1 and missed <= case.summed
        unread = case.layer.unread
        sure = agree and case.exact and not unread
        said = (
            f"{count} rows of {case.layer.weight} agree" if agree else f"{count} rows of {case.layer.weight} are used"
        )
        note = f"{said}, to a relative misfit of {missed:.1e}{case.noise_words}"
        if unread:
            note += f"; {unread} entries are read by no weight, and claimed as the middle of their range"
        inputs = case.inputs(x[None, None])
        done = case.claim(
            inputs if sure else case.clamped(inputs),
            None,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note=note,
            details={"rows": count, "misfit": missed},
        )
        return case.judged(done) if sure else done

    def _batch(self, case: Case, rows: Rows, monitor: Monitor) -> Reconstruction:
        found = _Found()
        options = case.options() if case.exact else None
        known = options is not None and keeps_scale(case.knowledge)
        rounds = 0
        while rounds < self.rounds:
            rounds += 1
            before = len(found.rows)
            if known and options is not None and before < case.examples:
                found.add(case, rows, rows.groups(), options)
            monitor(len(found.rows), case.examples, math.nan)
            if len(found.rows) == before:
                break
        certain = len(found.rows)
        agreeing = sorted((group for group in rows.groups() if len(group) > 1), key=len, reverse=True)
        agreeing = agreeing[: case.examples - certain]
        whole = options is not None and certain + len(agreeing) == case.examples
        if whole and options is not None:
            found.join(case, rows, agreeing, options, known=known)
        if whole and known:
            found.refine(case)
        claims = [*found.rows] if whole else [*found.rows, *(rows.mean(group) for group in agreeing)]
        claims += [rows.mean()] * (case.examples - len(claims))
        inputs = case.inputs(torch.stack(claims)[:, None])
        if not whole:
            inputs = torch.cat([inputs[:certain], case.clamped(inputs[certain:])])
        order = _order(case, found.targets, case.examples)
        done = case.claim(
            inputs[order],
            torch.stack(found.targets)[order] if whole else None,
            outcome=Outcome.NOT_IDENTIFIABLE,
            note=_said(case, certain, len(agreeing), known=known),
            details={"certain": certain, "agreeing": len(agreeing), "rows_of_each": list(found.counts)},
            iterations=rounds,
            spent=found.spent,
        )
        if not whole or case.layer.unread or not case.explains(done):
            return done
        return replace(
            done,
            outcome=Outcome.CONVERGED,
            note=f"every example stands alone in rows of {case.layer.weight}, or does once others are taken off, and together "
            "they explain the update",
        )


@dataclass(kw_only=True, eq=False)
class Rows:
    """Rows that are left of a gradient [∂L/∂W | ∂L/∂b], with the error that each may have.

    Attributes:
        matrix: (o, k).
        bias: (o,).
        size: magnitude of what was added up in each entry of the bias, whose round-off it carries.
        eps: unit of round-off, times what sums leave of it.
        stds: of the noise on an entry of matrix and bias.
    """

    matrix: Tensor
    bias: Tensor
    size: Tensor
    eps: float
    stds: tuple[float, float]

    @classmethod
    def of(cls, case: Case) -> Rows:
        """The rows of an update."""
        layer = case.layer
        assert layer.bias is not None
        bias = case.tensors[layer.bias].reshape(-1).clone()
        return cls(
            matrix=layer.matrix(case.tensors[layer.weight]).clone(),
            bias=bias,
            size=bias.abs(),
            eps=case.summed,
            stds=(case.std(layer.weight), case.std(layer.bias)),
        )

    @property
    def errors(self) -> Tensor:
        """Relative error that the quotient of each row may have, (o,); infinite where nothing is left of it."""
        norms, width = self.matrix.norm(dim=1), self.matrix.shape[1]
        of_bias = (self.eps * self.size + self.stds[1]) / self.bias.abs()
        of_row = (self.eps * self.size / self.bias.abs()) + self.stds[0] * math.sqrt(width) / norms
        found = torch.where((self.bias != 0) & (norms > 0), of_bias + of_row, math.inf)
        return torch.nan_to_num(found, nan=math.inf, posinf=math.inf)

    @property
    def told(self) -> Tensor:
        """Mask of rows whose quotient tells something."""
        return self.errors < (_LOOSE if max(self.stds) == 0 else 1.0)

    def mean(self, members: Tensor | None = None) -> Tensor:
        """Quotient (k,) that some rows have together, or all: Σ g_i G_i / Σ g_i²."""
        chosen = self.told if members is None else members
        bias = self.bias[chosen]
        return (bias @ self.matrix[chosen]) / bias.square().sum()

    def groups(self) -> list[Tensor]:
        """Numbers of the rows that have the same quotient, one list each, rows alone included."""
        places = self.told.nonzero()[:, 0]
        if not len(places):
            return []
        quotients = self.matrix[places] / self.bias[places, None]
        errors = self.errors[places] * quotients.norm(dim=1)
        stream = torch.Generator().manual_seed(0)
        along = torch.randn(quotients.shape[1], generator=stream, dtype=torch.float64).to(quotients)
        order = (quotients @ along).argsort()
        apart = (quotients[order[1:]] - quotients[order[:-1]]).norm(dim=1) > errors[order[1:]] + errors[order[:-1]]
        cuts = (apart.nonzero()[:, 0] + 1).tolist()
        return [places[part] for part in order.tensor_split(cuts)]

    def take_off(self, part: Tensor, x: Tensor, share: float) -> None:
        """Take the part (o,) of one example (k,) off all rows; `share` is its relative error."""
        self.matrix.addr_(part, x, alpha=-1.0)
        self.bias = self.bias - part
        self.size = self.size + part.abs() * share / self.eps


@dataclass(kw_only=True, eq=False)
class _Found:
    """Examples that are certain: their rows (k,), targets, number of rows that agree, and what it took."""

    rows: list[Tensor] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    spent: float = 0.0

    def add(self, case: Case, rows: Rows, groups: list[Tensor], options: Tensor) -> None:
        """Take off the candidates that are certain."""
        tolerance, errors = case.computed, rows.errors
        likely = _DIGITS + math.log10(max(len(groups) * len(options), 1))
        allowed = [max(tolerance, 4 * float(errors[group].min())) for group in groups]
        # Most rows first; too few cannot be certain, whatever the model says of them.
        able = [place for place, group in enumerate(groups) if -len(group) * math.log10(allowed[place]) >= likely]
        able = sorted(able, key=lambda place: (-len(groups[place]), allowed[place]))[: 4 * case.examples]
        if not able:
            return
        groups, allowed = [groups[place] for place in able], [allowed[place] for place in able]
        candidates = torch.stack([rows.mean(group) for group in groups])
        inputs = case.inputs(candidates[:, None])
        scale = case.knowledge.release.protocol.gradient_scale() or 1.0
        parts = scale * case.contributions(inputs, options)
        self.spent += len(options) * math.ceil(len(groups) / case.examples)
        for group, x, each, limit in zip(groups, candidates, parts, allowed, strict=True):
            if len(self.rows) == case.examples:
                return
            seen = rows.bias[group]
            missed = (each[:, group] - seen).norm(dim=1) / seen.norm()
            best = int(missed.argmin())
            if not float(missed[best]) <= limit:
                continue
            self.rows.append(x)
            self.targets.append(options[best])
            self.counts.append(len(group))
            rows.take_off(each[best], x, limit)

    def join(self, case: Case, rows: Rows, groups: list[Tensor], options: Tensor, *, known: bool) -> None:
        """Add candidates that are not certain each, with the target that fits best: together they may be.

        Args:
            case: the update.
            rows: what is left of its rows.
            groups: rows of the candidates.
            options: targets that an example may have.
            known: whether the scale of the update is.
        """
        if not groups:
            return
        candidates = torch.stack([rows.mean(group) for group in groups])
        parts = case.contributions(case.inputs(candidates[:, None]), options)
        self.spent += len(options) * math.ceil(len(groups) / case.examples)
        scale = case.knowledge.release.protocol.gradient_scale() or 1.0
        for group, x, each in zip(groups, candidates, parts, strict=True):
            made, seen = each[:, group], rows.bias[group]
            factors = (made @ seen) / made.square().sum(dim=1).clamp(min=torch.finfo(seen.dtype).tiny)
            made = made * (scale if known else factors[:, None].clamp(min=0))
            best = int((made - seen).norm(dim=1).argmin())
            self.rows.append(x)
            self.targets.append(options[best])
            self.counts.append(len(group))

    def refine(self, case: Case) -> None:
        """All examples together, X = Δ⁺ ∂L/∂W with Δ as the model makes it of them, as long as they come nearer."""
        gradient = case.layer.matrix(case.tensors[case.layer.weight])
        scale = case.knowledge.release.protocol.gradient_scale() or 1.0
        targets, rows = torch.stack(self.targets), torch.stack(self.rows)
        best = math.inf
        for _ in range(_REFINEMENTS):
            passed = scale * case.passed_back(case.inputs(rows[:, None]), targets).T
            self.spent += 1
            apart = (passed @ rows - gradient).norm(dim=1)
            if not float(apart.norm()) < best:
                break
            best, self.rows = float(apart.norm()), list(rows)
            # A unit next to zero may be on the wrong side, which spoils its row alone.
            fits = apart <= _WRONG_SIDE * apart.median()
            rows = torch.linalg.lstsq(passed[fits], gradient[fits]).solution


def _order(case: Case, targets: list[Tensor], count: int) -> list[int]:
    """Order of the claims that puts those with a found target where a disclosed one stands."""
    if case.source != LabelSource.DISCLOSED.value or case.targets is None:
        return list(range(count))
    left = list(range(count))
    order: list[int] = [-1] * count
    for place, target in enumerate(case.targets):
        same = next((one for one in left if one < len(targets) and torch.equal(targets[one], target)), None)
        if same is not None:
            order[place] = same
            left.remove(same)
    return [place if place >= 0 else left.pop() for place in order]


def _said(case: Case, certain: int, shown: int, *, known: bool) -> str:
    if known:
        parts = [f"{certain} of {case.examples} examples stand alone in rows of {case.layer.weight} and are certain"]
    else:
        parts = [f"what single examples pass back is not known here, so that none of {case.examples} is certain alone"]
    if shown:
        parts.append(f"{shown} {'more ' if certain else ''}are quotients on which several rows agree")
    if certain + shown < case.examples:
        parts.append("the others are claimed as what the remaining rows have in common")
    return "; ".join(parts) + case.noise_words


def _nothing(case: Case) -> Reconstruction:
    details: dict[str, Any] = {"labels": case.source}
    return Reconstruction(
        inputs=None,
        targets=None,
        loss=None,
        outcome=Outcome.NO_SIGNAL,
        note=f"no row of {case.layer.bias} stands out of noise and round-off: nothing is claimed",
        details=details,
    )
