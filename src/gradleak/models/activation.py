"""The activations that the papers' networks are built with."""

from __future__ import annotations

from enum import StrEnum

from torch import nn

from gradleak.results import member


class Activation(StrEnum):
    """An elementwise activation; its value is the name that a plan file writes.

    SIGMOID, TANH and GELU are smooth. RELU is not: its second derivative is zero wherever it exists,
    so that gradient matching sees the input only through the pattern of active units.

    Examples:
        >>> Activation.TANH.module()
        Tanh()
        >>> Activation.named("gelu")
        <Activation.GELU: 'gelu'>
    """

    SIGMOID = "sigmoid"
    TANH = "tanh"
    RELU = "relu"
    GELU = "gelu"

    @classmethod
    def named(cls, name: Activation | str) -> Activation:
        """The activation of that name.

        Args:
            name: A member, or the value of one.

        Returns:
            The member.

        Raises:
            InputError: No activation has that name.
        """
        return member("activation", cls, name)

    def module(self) -> nn.Module:
        """A new module that computes the activation, out of place.

        Returns:
            The module, without parameters.
        """
        match self:
            case Activation.SIGMOID:
                return nn.Sigmoid()
            case Activation.TANH:
                return nn.Tanh()
            case Activation.RELU:
                return nn.ReLU()
            case Activation.GELU:
                return nn.GELU()
