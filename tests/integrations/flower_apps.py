"""A client and a server of Flower: partition 0 holds one digit, which leaks, 1 holds sixty-four, and 2 adds noise."""

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

from gradleak.core import Batch, Release
from gradleak.integrations.flower import LeakGate, save_updates
from tests.integrations.cases import CLIENTS, gate, network, rows, trained_by

ACTION = os.environ.get("GATE_ON_LEAK", "")
FOLDER = Path(os.environ.get("GATE_FOLDER", "."))


def mine(context: Any) -> tuple[Batch, Release]:
    """The digits of the client, and how it makes its update."""
    count, release = CLIENTS[int(context.node_config["partition-id"])]
    return rows(count), release


def guarded(message: Message, context: Any, call_next: Any) -> Message:
    """The gate of the client: all of them run one app here, and each has a release of its own."""
    batch, release = mine(context)
    judge = gate(ACTION, release, log=str(FOLDER / f"gate{context.node_config['partition-id']}.jsonl"))
    return LeakGate(gate=judge, batch=batch)(message, context, call_next)


def client() -> ClientApp:
    """The client, with a gate in front if GATE_ON_LEAK says so."""
    app = ClientApp(mods=[guarded] if ACTION else [])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = network()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        batch, release = mine(context)
        content = {
            "arrays": ArrayRecord(trained_by(release, model, batch)),
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
            FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3), FOLDER / "kept"
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
