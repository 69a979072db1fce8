"""A vision transformer with learned positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradleak.models.initialize import check_sizes, construct
from gradleak.models.transformer import Block
from gradleak.results import InputError


class ViT(nn.Module):
    """Patches through one linear map, a class token in front, learned positions added, blocks, and a head on the class token.

    Args:
        channels: of an image.
        size: height and width of an image.
        patch: height and width of a patch; it divides the size.
        width: numbers of a token.
        blocks: how many follow each other.
        heads: of each attention; they divide the width.
        classes: number of logits.
    """

    def __init__(
        self, *, channels: int, size: int, patch: int, width: int, blocks: int, heads: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Embedding(1, width)
        self.positions = nn.Embedding(1 + (size // patch) ** 2, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal=False, norm_first=True) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (b, classes) for images (b, channels, size, size)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        front = self.class_token.weight.expand(len(tokens), -1, -1)
        x = torch.cat([front, tokens], dim=1) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x)[:, 0])
        return logits


def vit(
    *,
    channels: int = 3,
    size: int = 32,
    patch: int = 4,
    width: int = 96,
    blocks: int = 4,
    heads: int = 3,
    classes: int = 10,
    std: float = 0.02,
    generator: torch.Generator | None = None,
) -> ViT:
    """A vision transformer; 459,562 parameters by default.

    ViT-S is `vit(size=..., patch=..., width=384, blocks=12, heads=6)`. Weights, class token and positions are drawn from
    N(0, std²), biases are zero.

    Args:
        channels: of an image.
        size: height and width of an image.
        patch: height and width of a patch; it divides the size.
        width: numbers of a token.
        blocks: how many follow each other.
        heads: of each attention; they divide the width.
        classes: number of logits.
        std: of the weights.
        generator: source of the weights; None stands for a new generator with seed 0.

    Returns:
        The network, float32 (or torch's default dtype), on the CPU, in train mode; it has no dropout.

    Raises:
        InputError: for a number out of range, patches that do not divide the image, or heads that do not divide the width.

    Source:
        Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words"; sizes of ViT-S as in Touvron et al. 2021. Deviation: all
        weights have one standard deviation, not truncated.

    Examples:
        >>> vit()(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """
    sizes = {"channels": channels, "size": size, "patch": patch, "width": width, "blocks": blocks, "heads": heads}
    check_sizes({**sizes, "classes": classes})
    if size % patch or width % heads or not std > 0:
        raise InputError(
            "vit: expected patches that divide the image, heads that divide the width, and std > 0, got "
            f"size={size}, patch={patch}, width={width}, heads={heads}, std={std}"
        )
    rng = generator if generator is not None else torch.Generator().manual_seed(0)
    model = construct(lambda: ViT(**sizes, classes=classes), rng)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, 0.0, std, generator=rng)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    return model
