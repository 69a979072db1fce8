"""A start that is read layer by layer, where a ReLU network and its release allow it."""

from __future__ import annotations

from torch import Tensor

from gradleak.attacks.inversion.gauss_newton.residual_system import ResidualSystem
from gradleak.attacks.inversion.peel import read_rectified
from gradleak.core import Knowledge, Update

# Plain gradients that have to be left: as many as reading takes, as a rule.
_COST = 8.0


def read_start(system: ResidualSystem, update: Update, knowledge: Knowledge, max_unknowns: int) -> Tensor | None:
    """Unknowns (n,) that `Peel` reads of a ReLU network, where it applies and they explain a part of the update; else None.

    Args:
        system: the residual; what reading costs is counted there.
        update: aligned with the model.
        knowledge: of the adversary.
        max_unknowns: of `Peel`.
    """
    problem, cost = system.problem, system.cost
    if problem.space.sentences is not None or cost.left < _COST:
        return None
    claim = read_rectified(update, knowledge, max_unknowns=max_unknowns)
    if claim is None:
        return None
    cost.warm += claim.plain_gradients
    targets = claim.targets if problem.labels is None else problem.labels
    if claim.inputs is None or targets is None or claim.loss is None or not claim.loss < 1:
        return None
    return problem.variables.encode(problem.space, claim.inputs, targets).clamp(system.low, system.high)
