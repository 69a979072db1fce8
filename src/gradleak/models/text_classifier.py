"""A small convolutional classifier of texts, on tokens as one-hot rows so that a gradient can be inverted."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from gradleak.models.initialize import Activation, check_sizes, construct
from gradleak.results import InputError

_FILTERS, _HIDDEN = 16, 50
_FIRST, _SECOND, _POOL = 3, 8, 2
_LEAST_LENGTH = 20


class TokenEmbedding(nn.Embedding):
    """Rows of the table, weighted by the input: (b, length, words) to (b, width, length).

    A one-hot row looks its word up, as `nn.Embedding` does with an index, a row of zeros gives zeros, and the gradient of
    the table is the same. Other rows (soft tokens, in an attack that searches one) give mixtures of words, differentiably.

    Examples:
        >>> layer = TokenEmbedding(3, 2)
        >>> bool((layer(torch.eye(3)[None])[0].T == layer.weight).all())
        True
    """

    def forward(self, input: Tensor) -> Tensor:
        """The embedded tokens, channels before positions."""
        return (input @ self.weight).transpose(1, 2)


def text_classifier(
    *,
    classes: int = 2,
    words: int = 500,
    length: int = 32,
    width: int = 32,
    activation: Activation | str = Activation.RELU,
    generator: torch.Generator | None = None,
) -> nn.Sequential:
    """A network of an embedding, two convolutions over positions and two linear layers; 22,968 parameters by default.

    `embedding` is the table (words, width). The convolutions `conv1`, `conv2` have 16 filters of size 3 and 8 without
    padding; the activation and a max pooling of 2 follow each. `fc1`, `fc2` have 50 and `classes` outputs, with the
    activation between them. Inputs are (b, length, words): a one-hot row for each token, zeros beyond the end, as
    `gradleak.datasets.sentences` makes them. Outputs are logits (b, classes).

    Only the rows of the table whose words occur have a gradient: who sees it reads the words of a batch off.
    Positions beyond the end are all the same, so that their poolings tie: the gradient with respect to parameters is exact,
    but its derivative with respect to the input, which measures take, is that of one of several branches there.

    Args:
        classes: Number of logits.
        words: Number of words in the vocabulary.
        length: Number of positions, at least 20.
        width: Numbers of an embedding.
        activation: The activation everywhere.
        generator: Source of the weights, drawn by `initialize_default` (the table from N(0, 1)). None stands for a new
            generator with seed 0, the same weights at each call; the global RNG is never touched.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU.

    Raises:
        InputError: No activation has that name, or a number is out of range.

    Source:
        Mo et al. 2021, "Quantifying and Localizing Private Information Leakage from Neural Network Gradients", section
        6.1, TextClf. The paper names neither padding nor what stands before the first convolution; an embedding of
        words, its width and the length are ours.

    Examples:
        >>> sum(p.numel() for p in text_classifier().parameters())
        22968
    """
    act = Activation.named(activation)
    check_sizes({"classes": classes, "words": words, "length": length, "width": width})
    if length < _LEAST_LENGTH:
        raise InputError(
            f"text_classifier: expected length of at least {_LEAST_LENGTH}, got {length}: nothing is left behind the pooling"
        )
    left = ((length - _FIRST + 1) // _POOL - _SECOND + 1) // _POOL

    def layers() -> nn.Sequential:
        return nn.Sequential(
            OrderedDict(
                embedding=TokenEmbedding(words, width),
                conv1=nn.Conv1d(width, _FILTERS, _FIRST),
                act1=act.module(),
                pool1=nn.MaxPool1d(_POOL),
                conv2=nn.Conv1d(_FILTERS, _FILTERS, _SECOND),
                act2=act.module(),
                pool2=nn.MaxPool1d(_POOL),
                flatten=nn.Flatten(),
                fc1=nn.Linear(_FILTERS * left, _HIDDEN),
                act3=act.module(),
                fc2=nn.Linear(_HIDDEN, classes),
            )
        )

    return construct(layers, generator)
