"""A trained ResNet-20 for CIFAR-10, from a weights file of one's own."""

from __future__ import annotations

import os
from pathlib import Path

import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from gradleak.results import InputError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A: every other pixel, zero channels)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = 1 if inputs == outputs else 2
        self.conv1 = nn.utils.skip_init(nn.Conv2d, inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.utils.skip_init(nn.Conv2d, outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The block's result."""
        inner = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride == 2:
            extra = (inner.shape[1] - x.shape[1]) // 2
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, extra, extra))
        return F.relu(inner + x)


class _ResNet20(nn.Module):
    """Three stages of three blocks with 16, 32 and 64 channels, global mean, one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.utils.skip_init(nn.Conv2d, 3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(_Block(16, 16) for _ in range(3)))
        self.layer2 = nn.Sequential(_Block(16, 32), _Block(32, 32), _Block(32, 32))
        self.layer3 = nn.Sequential(_Block(32, 64), _Block(64, 64), _Block(64, 64))
        self.linear = nn.utils.skip_init(nn.Linear, 64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (b, 10)."""
        maps = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        result: Tensor = self.linear(maps.mean((2, 3)))
        return result


def cifar_resnet20(path: str | os.PathLike[str]) -> nn.Module:
    """A ResNet-20 with the weights of a safetensors file; inputs are pixels in [0, 1], normalized by `MEAN` and `STD`.

    Args:
        path: with the names and shapes of torch's CIFAR ResNet-20 with option A shortcuts (He et al. 2016, section 4.2).

    Raises:
        InputError: for a missing file or one with other tensors.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{file}: expected a safetensors file of a CIFAR ResNet-20, got no such file")
    model = _ResNet20()
    try:
        model.load_state_dict(load_file(file), strict=False)
        missing = set(model.state_dict()) - set(load_file(file))
    except (RuntimeError, SafetensorError) as error:
        raise InputError(f"{file}: the tensors are not those of a CIFAR ResNet-20 ({error})") from error
    if any(not name.endswith("num_batches_tracked") for name in missing):
        raise InputError(
            f"{file}: expected all tensors of a CIFAR ResNet-20, got none for {', '.join(sorted(missing))}"
        )
    return model
