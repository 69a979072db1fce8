"""The gate inside of Flower: three clients and a real server, in its simulation and over sockets of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gradleak.core import Update
from tests.integrations.cases import nothing_found

pytest.importorskip("flwr", reason="flwr is not installed; make test-integrations runs this")
pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PROJECT = """
[project]
name = "gate-app"
version = "1.0.0"
description = "three clients"
dependencies = ["flwr>=1.20"]
license = {{ file = "LICENSE" }}

[tool.flwr.app]
publisher = "gradleak"
fab-format-version = 1
flwr-version-target = "{version}"
[tool.flwr.app.components]
serverapp = "gate_app.apps:server"
clientapp = "gate_app.apps:client"
[tool.flwr.app.config]
"""
APPS = """
from tests.integrations import flower_apps
client = flower_apps.client()
server = flower_apps.server()
"""


def environment(folder: Path, action: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    own = {"GATE_ON_LEAK": action, "GATE_FOLDER": str(folder), "FLWR_HOME": str(folder / "home"), "PYTHONPATH": path}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **own, "PATH": path, "FLWR_TELEMETRY_ENABLED": "0", "OMP_NUM_THREADS": "1"}


def ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return found


@contextmanager
def processes(commands: list[list[str]], folder: Path, action: str) -> Iterator[None]:
    started = []
    try:
        for place, command in enumerate(commands):
            with (folder / f"process{place}.log").open("wb") as log:
                made = subprocess.Popen(command, env=environment(folder, action), cwd=folder, stdout=log, stderr=log)
            started.append(made)
        yield
    finally:
        for one in reversed(started):
            one.terminate()
        for one in started:
            one.wait(timeout=60)


def over_sockets(folder: Path, action: str) -> None:
    """One round by a SuperLink and three SuperNodes, which talk over localhost."""
    from importlib.metadata import version

    home, app = folder / "home", folder / "app"
    (app / "gate_app").mkdir(parents=True)
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT.format(version=version("flwr")), encoding="utf-8")
    (app / "LICENSE").write_text("A test.", encoding="utf-8")
    (app / "gate_app" / "__init__.py").write_text("", encoding="utf-8")
    (app / "gate_app" / "apps.py").write_text(APPS, encoding="utf-8")
    # All interfaces of a SuperLink are on one port, by HTTP.
    link, *nodes = ports(4)
    config = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(config, encoding="utf-8")
    commands = [["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(link)]]
    for place, port in enumerate(nodes):
        name = ["--node-config", f"partition-id={place}", "--port", str(port)]
        commands.append(["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", *name])
    with processes(commands, folder, action):
        deadline = time.monotonic() + 600
        asked: Any = None
        while time.monotonic() < deadline:
            asked = subprocess.run(
                ["flwr", "run", str(app), "here"],
                env=environment(folder, action),
                cwd=folder,
                capture_output=True,
                text=True,
            )
            if asked.returncode == 0:
                break
            time.sleep(5)
        assert asked.returncode == 0, asked.stdout + asked.stderr
        while time.monotonic() < deadline and not (folder / "seconds.txt").exists():
            time.sleep(1)
    assert (folder / "seconds.txt").exists(), "\n".join(
        path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("process*.log"))
    )


def simulated(folder: Path, action: str) -> None:
    """One round in Flower's simulation, whose Ray gives itself 30 seconds to start; a busy machine gets three tries."""
    code = (
        "from flwr.simulation import run_simulation\n"
        "from tests.integrations import flower_apps as a\n"
        "own = {'init_args': {'num_cpus': 2, 'object_store_memory': 100_000_000}, 'client_resources': {'num_cpus': 1}}\n"
        "run_simulation(server_app=a.server(), client_app=a.client(), num_supernodes=3, backend_config=own)\n"
    )
    for _ in range(3):
        ended = subprocess.run(
            [sys.executable, "-c", code],
            env=environment(folder, action),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if "node timed out during startup" not in ended.stderr:
            break
    else:
        pytest.skip("Ray, which Flower's simulation needs, did not start on this machine within its 30 seconds")
    assert ended.returncode == 0, ended.stderr[-3000:]


def updates(folder: Path) -> list[dict[str, Any]]:
    kept = sorted(path for path in (folder / "kept").iterdir() if "model" not in path.name)
    loaded = [Update.load(path).tensors for path in kept]
    return sorted(loaded, key=lambda tensors: float(next(iter(tensors.values())).norm()))


def decisions(folder: Path) -> list[dict[str, Any]]:
    """The only line of each client's log."""
    texts = [(folder / f"gate{place}.jsonl").read_text(encoding="utf-8") for place in range(3)]
    return [json.loads(text) for text in texts]


@pytest.mark.parametrize("carry_out", [simulated, over_sockets])
def test_honest_and_private_updates_arrive_with_the_same_bits_and_leaking_ones_do_not(
    carry_out: Any, tmp_path: Path
) -> None:
    for action in ("", "warn", "refuse"):
        (tmp_path / f"run-{action}").mkdir()
        carry_out(tmp_path / f"run-{action}", action)
    plain, warned, refused = (tmp_path / f"run-{action}" for action in ("", "warn", "refuse"))
    without, beside = updates(plain), updates(warned)
    assert len(without) == len(beside) == 3
    for mine, theirs in zip(without, beside, strict=True):
        assert list(mine) == list(theirs)
        assert all((mine[name] == theirs[name]).all() for name in mine)
    leaking, honest, private = decisions(warned)
    assert leaking["leaks"] is True
    assert nothing_found(honest), honest
    assert (private["leaks"], private["reason"]) == (False, "no_attack_had_a_chance")
    left = updates(refused)
    assert len(left) == 2
    assert all(any(all((one[name] == two[name]).all() for name in one) for two in without) for one in left)
    assert [line["passes"] for line in decisions(refused)] == [False, True, True]
    assert (refused / "errors.txt").read_text() == "7301 gradleak: this update was withheld by the client"
    assert (warned / "errors.txt").read_text() == ""
