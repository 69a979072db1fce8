"""The inversions that the study of original information by layer can run."""

from __future__ import annotations

from enum import StrEnum

from gradleak.attacks import DLG, Attack, GaussNewton, InvertingGradients

# Inner steps of L-BFGS without progress before a start goes back to its best point with half the step.
_RESTART_AFTER = 40


class LayerInversion(StrEnum):
    """Inversions by name; all see the label where it is disclosed.

    INVERTING_GRADIENTS (cosine, signed Adam, total variation, box) was made for ReLU. DLG (squared error, L-BFGS) is the
    family that Mo et al. 2021 name; with the label disclosed it is iDLG too. GAUSS_NEWTON (Levenberg–Marquardt) is the
    strongest where the network is smooth, and takes long: A of one image and one set is factored at each step.
    """

    INVERTING_GRADIENTS = "inverting_gradients"
    DLG = "dlg"
    GAUSS_NEWTON = "gauss_newton"

    def attack(self, *, iterations: int, total_variation: float, starts: int) -> Attack:
        """The attack.

        Args:
            iterations: signed Adam's, L-BFGS's of 20 inner steps, or steps of Levenberg–Marquardt, at most.
            total_variation: weight of the prior; INVERTING_GRADIENTS alone has one.
            starts: of which the best match is claimed.
        """
        match self:
            case LayerInversion.INVERTING_GRADIENTS:
                return InvertingGradients(iterations=iterations, total_variation=total_variation, restarts=starts)
            case LayerInversion.DLG:
                return DLG(iterations=iterations, restarts=starts, restart_after=_RESTART_AFTER)
            case LayerInversion.GAUSS_NEWTON:
                return GaussNewton(max_steps=iterations, starts=starts)


__all__ = ["LayerInversion"]
