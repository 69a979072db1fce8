"""Linear layer that makes the output of a model, read off the computation itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@dataclass(frozen=True, eq=False)
class LinearCall:
    """One call of `linear`.

    Attributes:
        inputs: what went in.
        weight: the weight that was used, the very tensor.
        bias: the bias that was used, or None.
        result: what came out.
        version: of the result when it came out, which shows later changes in place.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None
    result: Tensor
    version: int

    def made(self, outputs: Any) -> bool:
        """True if `outputs` is the result of this call, not changed in place since."""
        return self.result is outputs and self.result._version == self.version


class LinearCalls(TorchFunctionMode):
    """While active, records every call of `linear` and of `log_softmax` along the last axis.

    Attributes:
        calls: of `linear`, in order.
        log_softmaxes: (argument, its version, result) of `log_softmax`, in order.
    """

    def __init__(self) -> None:
        """Nothing recorded yet."""
        super().__init__()
        self.calls: list[LinearCall] = []
        self.log_softmaxes: list[tuple[Tensor, int, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call through, and note what is of interest."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.linear:
            given = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
            self.calls.append(LinearCall(given["input"], given["weight"], given.get("bias"), result, result._version))
        elif getattr(func, "__name__", "") == "log_softmax":
            source = args[0] if args else kwargs["input"]
            axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if axis in (-1, source.dim() - 1):
                self.log_softmaxes.append((source, source._version, result))
        return result

    def maker(self, outputs: Any) -> LinearCall | None:
        """The call whose result `outputs` is, or None; a result that was changed in place since is not it."""
        return next((call for call in reversed(self.calls) if call.made(outputs)), None)

    def before_log_softmax(self, outputs: Any) -> Any:
        """Input of the log-softmax that made `outputs`; `outputs` itself where none did."""
        for source, version, result in reversed(self.log_softmaxes):
            if result is outputs and source._version == version:
                return source
        return outputs
