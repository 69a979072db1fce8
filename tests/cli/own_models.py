"""Models as users bring them: a residual network for images, one for rows of a table, a small transformer on ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class BasicBlock(nn.Module):
    def __init__(self, planes_in: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(planes_in, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or planes_in != planes:
            self.downsample = nn.Sequential(nn.Conv2d(planes_in, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """In the manner of torchvision, with in-place activations and additions."""

    def __init__(self, width: int = 8, num_classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = BasicBlock(width, width)
        self.layer2 = BasicBlock(width, 2 * width, 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(2 * width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def tabular(hidden: int = 16, inputs: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 2))


class Attention(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (one.view(b, t, self.heads, -1).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v)
        return self.out(seen.transpose(1, 2).reshape(b, t, d))


class Transformer(nn.Module):
    """A classifier of sentences."""

    def __init__(self, vocabulary: int = 50, size: int = 16, length: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, size), nn.Embedding(length, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, 2)
        self.mlp = nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.head = nn.Linear(size, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(x.mean(dim=1))


def unannotated(hidden: int = 4):  # type: ignore[no-untyped-def]
    return nn.Linear(5, hidden)


def half() -> nn.Module:
    return tabular().half()


def frozen() -> nn.Module:
    return tabular().requires_grad_(False)


def unfitting(num_classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, num_classes))


def ending() -> nn.Module:
    raise SystemExit(0)


def recurrent() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(7, 2))
