"""Sites and a server of NVFlare: site-1 holds one digit, which leaks, 2 sixty-four, 3 uses Opacus, 4 trains adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.model_controller import ModelController

from tests.integrations.cases import (
    adapters_of,
    network,
    rows_of_1,
    rows_of_2,
    rows_of_3,
    trained,
    trained_by_opacus,
    with_adapters,
)


class Site(Executor):
    """One step of local training on the digits of a site, of one of four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        model = with_adapters() if self.way == "adapters" else network()
        sent = from_shareable(shareable).data
        received = {name: torch.as_tensor(np.array(value)) for name, value in sent.items()}
        if self.way == "adapters":
            import peft

            peft.set_peft_model_state_dict(model, received)
            trained(model, rows_of_2())
            found = adapters_of(model)
        else:
            model.load_state_dict(received)
            found = (
                trained_by_opacus(model, rows_of_3())
                if self.way == "opacus"
                else trained(model, rows_of_1() if self.way == "one" else rows_of_2())
            )
        made = {name: tensor.numpy() for name, tensor in found.items()}
        if self.way != "one":
            made = {name: value - sent[name] for name, value in made.items()}
        kind = DataKind.WEIGHTS if self.way == "one" else DataKind.WEIGHT_DIFF
        return DXO(data_kind=kind, data=made).to_shareable()


class Once(ModelController):
    """One round, whose results are kept by site; the last site gets adapters alone."""

    def __init__(self, folder: str) -> None:
        # A refused result is an error, which would end the job.
        super().__init__(ignore_result_error=True)
        self.folder = folder

    def run(self) -> None:
        whole, adapters = network().state_dict(), adapters_of(with_adapters())
        for tensors, targets in ((whole, ["site-1", "site-2", "site-3"]), (adapters, ["site-4"])):
            params = {name: tensor.numpy() for name, tensor in tensors.items()}
            for result in self.send_model_and_wait(
                task_name="train", data=FLModel(params=params), targets=targets, timeout=600
            ):
                name = result.meta.get("client_name", "unknown")
                np.savez(Path(self.folder) / f"{name}.npz", **result.params)
