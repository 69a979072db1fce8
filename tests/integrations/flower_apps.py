"""A client and a server of Flower: partition 0 holds one digit, which leaks, partition 1 holds sixty-four, or one with noise."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from gradleak.core import Batch
from gradleak.integrations.flower import LeakGate, save_updates
from tests.integrations.cases import gate, network, rows, trained

ACTION = os.environ.get("GATE_ON_LEAK", "")
FOLDER = Path(os.environ.get("GATE_FOLDER", "."))


def data(context: Any) -> Batch:
    """The digits of the client."""
    return rows(1 if int(context.node_config["partition-id"]) == 0 else 64)


def client() -> ClientApp:
    """The client, with a gate in front if GATE_ON_LEAK says so."""
    mods = [LeakGate(gate=gate(ACTION, log=str(FOLDER / "gate.jsonl")), batch=data)] if ACTION else []
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        batch = data(context)
        content = {
            "arrays": ArrayRecord(trained(model, batch)),
            "metrics": MetricRecord({"num-examples": batch.size}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


def server() -> ServerApp:
    """The server, which keeps updates, the average of the last round and the errors that it was sent."""
    app = ServerApp()

    @app.main()
    def main(grid: Any, context: Any) -> None:
        strategy = save_updates(
            FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2), FOLDER / "kept"
        )
        aggregate = strategy.aggregate_train

        def aggregate_train(server_round: int, replies: Any) -> Any:
            answers = list(replies)
            errors = [f"{one.error.code} {one.error.reason}" for one in answers if one.has_error()]
            (FOLDER / "errors.txt").write_text("\n".join(errors), encoding="utf-8")
            return aggregate(server_round, answers)

        strategy.aggregate_train = aggregate_train
        started = time.perf_counter()
        result = strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=1)
        if result.arrays:
            torch.save(result.arrays.to_torch_state_dict(), FOLDER / "average.pt")
        (FOLDER / "seconds.txt").write_text(f"{time.perf_counter() - started:.2f}", encoding="utf-8")

    return app
