"""A site and a server of NVFlare: site-1 holds one digit, which leaks, site-2 sixty-four."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from tests.integrations.cases import network, rows, trained


class Site(Executor):
    """One step of local training on the digits of a site."""

    def __init__(self, count: int, difference: bool = False) -> None:
        super().__init__()
        self.count, self.difference = count, difference

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        model = network()
        sent = from_shareable(shareable).data
        model.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in sent.items()})
        made = {name: tensor.numpy() for name, tensor in trained(model, rows(self.count)).items()}
        if self.difference:
            made = {name: value - sent[name] for name, value in made.items()}
        kind = DataKind.WEIGHT_DIFF if self.difference else DataKind.WEIGHTS
        return DXO(data_kind=kind, data=made).to_shareable()


class Once(ModelController):
    """One round, whose results are kept by site."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def run(self) -> None:
        params = {name: tensor.numpy() for name, tensor in network().state_dict().items()}
        results = self.send_model_and_wait(task_name="train", data=FLModel(params=params), timeout=600)
        for result in results:
            name = result.meta.get("client_name", "unknown")
            np.savez(Path(self.folder) / f"{name}.npz", **result.params)
