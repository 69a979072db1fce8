"""The page of runs over plain http: what it shows, what it refuses, and that it writes nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gradleak.cli.view import Viewer
from gradleak.reporting.runs import DEEPEST, Run, State, find_runs
from gradleak.results import Finding, InputError, Record, RecordWriter, Verdict, VerdictKind
from tests.reporting.parsed import Page

SECRET = "what no page may show"


def record(name: str = "toy", kind: VerdictKind = VerdictKind.BOUNDED) -> Record:
    finding = Finding(kind="dead_units", item="plain/0", audit="release", scenario="plain", seconds=90.0)
    facts: dict[str, Any] = {"verdict": kind, "reason": "dp_bound", "explanation": "-"}
    verdicts = [Verdict(item="plain", scenario="plain", **facts), Verdict(item="run", **facts)]
    return Record.of([finding], verdicts, name=name)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A good run, one that leaks, a damaged and an edited one, one behind a link, and a secret beside the folder."""
    folder = tmp_path / "runs"
    for name, kind in (
        ("good", VerdictKind.BOUNDED),
        ("deep/er <b>", VerdictKind.LEAKS),
        ("torn", VerdictKind.BOUNDED),
    ):
        (folder / name).mkdir(parents=True)
        record(name, kind).save(folder / name)
    torn = folder / "torn" / "record.jsonl"
    torn.write_text(torn.read_text(encoding="utf-8").replace('"seconds": 90.0', '"seconds": 91.0'), encoding="utf-8")
    (folder / "edited").mkdir()
    edited = (folder / "good" / "record.jsonl").read_text(encoding="utf-8").replace('"name": "good"', '"name": "other"')
    (folder / "edited" / "record.jsonl").write_text(edited, encoding="utf-8")
    (tmp_path / "secret").mkdir()
    record(SECRET).save(tmp_path / "secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "file").mkdir()
    (folder / "file" / "record.jsonl").symlink_to(tmp_path / "secret" / "record.jsonl")
    return folder


@pytest.fixture
def viewer(runs: Path) -> Iterator[Viewer]:
    with Viewer(runs, 0) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def fetch(viewer: Viewer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, str]:
    """The answer to a path below the random word, or to a whole one that begins with a slash."""
    connection = HTTPConnection("127.0.0.1", viewer.server_port, timeout=20)
    try:
        connection.putrequest(
            method, path if path.startswith("/") else f"/{viewer.word}/{path}", skip_host="Host" in headers
        )
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def test_runs_stand_with_their_verdicts_and_damaged_ones_without(viewer: Viewer) -> None:
    answer, text = fetch(viewer, "")
    assert answer.status == 200
    rows = {part.split('"')[0]: part for part in text.split('<tr data-run="')[1:]}
    assert set(rows) == {"deep/er &lt;b&gt;", "good", "torn", "edited"}
    assert "Bounded" in rows["good"]
    assert "Leaks" in rows["deep/er &lt;b&gt;"]
    assert 'href="report?run=deep%2Fer+%3Cb%3E"' in rows["deep/er &lt;b&gt;"]
    for name, said in (("torn", "1 line is not what was written"), ("edited", "was damaged or edited")):
        assert "Bounded" not in rows[name]
        assert said in rows[name]
    assert "<a " not in rows["edited"]
    page = Page(text)
    assert "1 min 30 s" in page.text
    assert SECRET not in text
    radios = [attributes for tag, attributes in page.tags if tag == "input"]
    # Three records can be read.
    assert len(radios) == 6
    assert all(one["aria-label"] for one in radios)


def test_reports_and_comparisons_are_made_of_the_records(viewer: Viewer) -> None:
    answer, text = fetch(viewer, "report?run=good")
    assert answer.status == 200
    assert "<h1>good</h1>" in text
    assert "damaged" in fetch(viewer, "report?run=torn")[1]
    answer, text = fetch(viewer, "diff?before=good&after=deep%2Fer+%3Cb%3E")
    assert answer.status == 200
    assert "bounded and is leaks" in Page(text).text
    answer, text = fetch(viewer, "report?run=edited")
    assert answer.status == 422
    assert "Bounded" not in text
    assert fetch(viewer, "diff?before=good")[0].status == 400
    assert Page(fetch(viewer, "diff?before=good")[1]).text.endswith("Choose before and after. All runs")


def test_head_has_the_headers_and_no_content(viewer: Viewer) -> None:
    (got, text), (head, nothing) = fetch(viewer, "report?run=good"), fetch(viewer, "report?run=good", "HEAD")
    assert nothing == ""
    assert head.status == 200
    assert head.getheader("Content-Length") == got.getheader("Content-Length") == str(len(text.encode()))


ASKED = [
    ("", "GET", 200),
    ("runs.json", "GET", 200),
    ("/", "GET", 404),
    ("/favicon.ico", "GET", 404),
    ("/wrong-word/", "GET", 404),
    ("/wrong-word/runs.json", "GET", 404),
    ("report.html", "GET", 404),
    ("good/record.jsonl", "GET", 404),
    ("../secret/record.jsonl", "GET", 404),
    ("%2e%2e/secret/record.jsonl", "GET", 404),
    ("report?run=../secret", "GET", 404),
    ("report?run=%2e%2e%2fsecret", "GET", 404),
    ("report?run=%252e%252e%252fsecret", "GET", 404),
    ("report?run=good/../../secret", "GET", 404),
    ("report?run=/etc/passwd", "GET", 404),
    ("report?run=link", "GET", 404),
    ("report?run=file", "GET", 404),
    ("report?run=good%00", "GET", 404),
    ("report?run=good&run=torn", "GET", 400),
    ("report?run=%ff%fe", "GET", 400),
    ("report?run", "GET", 400),
    ("report?" + "&".join(f"a{place}=1" for place in range(9)), "GET", 400),
    ("diff?before=good&after=../secret", "GET", 404),
    ("", "POST", 405),
    ("report?run=good", "PUT", 405),
    ("report?run=good", "DELETE", 405),
    ("", "OPTIONS", 405),
    ("", "TRACE", 405),
]


@pytest.mark.parametrize(("path", "method", "status"), ASKED)
def test_nothing_outside_of_the_runs_is_answered_and_nothing_is_open_to_others(
    path: str, method: str, status: int, viewer: Viewer
) -> None:
    answer, text = fetch(viewer, path, method)
    assert answer.status == status
    assert SECRET not in text
    headers = {name.lower(): value for name, value in answer.getheaders()}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == "no-store"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "frame-ancestors 'none'" in policy
    assert not [name for name in headers if name.startswith("access-control")]
    assert viewer.word not in text
    if status == 405:
        assert headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil:{port}", ""]
)
def test_only_its_own_name_is_answered(host: str, viewer: Viewer) -> None:
    """A name of elsewhere that leads to this machine makes its page one of our origin."""
    answer, text = fetch(viewer, "", Host=host.format(port=viewer.server_port))
    assert answer.status == 421
    assert "Runs" not in text
    assert fetch(viewer, "", Host=f"localhost:{viewer.server_port}")[0].status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET http://evil.example/WORD/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /WORD/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nHost: evil.example\r\n\r\n",
        b"GET /WORD/ HTTP/1.0\r\n\r\n",
        b"GET /WORD/ HTTP/9.9\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    ],
    ids=["absolute", "two hosts", "no host", "version", "long", "tls"],
)
def test_what_is_no_request_is_refused(sent: bytes, viewer: Viewer) -> None:
    ready = sent.replace(b"WORD", viewer.word.encode()).replace(b"PORT", str(viewer.server_port).encode())
    with socket.create_connection(("127.0.0.1", viewer.server_port), timeout=20) as connection:
        connection.sendall(ready)
        said = b""
        while part := connection.recv(4096):
            said += part
    assert b" 200 " not in said.split(b"\r\n")[0]
    assert b"Runs" not in said
    assert fetch(viewer, "")[0].status == 200


def test_nothing_is_written(viewer: Viewer, runs: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in runs.rglob("*")}

    before = state()
    for path in ("", "runs.json", "report?run=good", "diff?before=good&after=torn"):
        fetch(viewer, path)
    assert state() == before


def test_it_listens_to_this_machine_alone_and_says_that_a_port_is_taken(viewer: Viewer, runs: Path) -> None:
    assert viewer.server_address == ("127.0.0.1", viewer.server_port)
    with pytest.raises(InputError, match=rf"--port: expected a port that is free, got {viewer.server_port} \("):
        Viewer(runs, viewer.server_port)
    with pytest.raises(InputError, match="expected a folder of runs"):
        Viewer(runs / "nowhere", 0)


def test_a_run_is_followed_while_it_goes_on(runs: Path) -> None:
    """Two of its four parts cost nine times as much as the other two."""
    (runs / "live").mkdir()
    groups = ["a", "b", "c", "verdict"]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 100))
    header = {
        "name": "live",
        "plan_digest": "0",
        "groups": groups,
        "started": started,
        "host": {"cores": 2},
        "estimate": {"plain_gradients": 1900.0, "of_groups": [100.0, 900.0, 900.0]},
    }
    file = runs / "live" / "record.jsonl"
    with RecordWriter(file, header) as writer:
        fresh = Run.read("live", file)
        assert (fresh.state, fresh.done, fresh.of, fresh.left) == (State.RUNNING, 0, 4, None)
        assert fresh.told(0.0) == "0 of 4 parts, time left not known yet"
        writer.write_group("a", [Finding(kind="dead_units", item="a", audit="release", seconds=10.0)])
        one = Run.read("live", file)
        assert (one.state, one.done) == (State.RUNNING, 1)
        # 10 s for 100 gradients, one at a time: 180 s for 1,800, and a little for the verdicts.
        assert one.left == pytest.approx(180, rel=0.05)
        assert one.told(one.changed) == "1 of 4 parts, about 3 min left"
        assert one.told(one.changed + 150) == "1 of 4 parts, about 25 s left"
        writer.write_group("b", [Finding(kind="dead_units", item="b", audit="release", seconds=190.0)])
        # 200 s of work in 100 s: two workers. 1,000 gradients took 200 s, so that 900 take 90 s.
        assert Run.read("live", file).left == pytest.approx(90, rel=0.05)
        with file.open("ab") as torn:
            torn.write(b'{"type": "finding", "gro')
        assert Run.read("live", file).state is State.RUNNING
    stopped = Run.read("live", file)
    assert stopped.state is State.UNFINISHED
    assert stopped.told(0.0) == "stopped after 2 of 4 parts; the same command goes on"


def test_looking_whether_a_record_is_written_does_not_keep_a_run_from_it(runs: Path) -> None:
    file = runs / "good" / "record.jsonl"
    header = dict(record("good").run) | {"plan_digest": "0"}
    ended = []

    def look() -> None:
        while not ended:
            Run.read("good", file)

    (runs / "new").mkdir()
    watched = Thread(target=look)
    watched.start()
    try:
        for place in range(20):
            with RecordWriter(runs / "new" / f"{place}.jsonl", header):
                pass
    finally:
        ended.append(True)
        watched.join()
    assert len(list((runs / "new").glob("*.jsonl"))) == 20


def test_folders_are_looked_through_to_a_depth(tmp_path: Path) -> None:
    deep = tmp_path
    for place in range(DEEPEST + 1):
        deep = deep / str(place)
    deep.mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    for folder in (tmp_path, deep, deep.parent, tmp_path / ".hidden"):
        record().save(folder)
    assert list(find_runs(tmp_path)) == [".", "0/1/2/3"]


def test_the_json_is_read_again_when_a_record_changes(viewer: Viewer, runs: Path) -> None:
    first = {one["name"]: one["state"] for one in json.loads(fetch(viewer, "runs.json")[1])["runs"]}
    assert first == {"deep/er <b>": "finished", "edited": "unreadable", "good": "finished", "torn": "damaged"}
    record("torn").save(runs / "torn")
    (runs / "edited" / "record.jsonl").unlink()
    (runs / "edited").rmdir()
    # A record that took long to read rests for a while.
    for _ in range(100):
        second = {one["name"]: one["state"] for one in json.loads(fetch(viewer, "runs.json")[1])["runs"]}
        if second != first and second["torn"] != "damaged":
            break
        time.sleep(0.02)
    assert second == {"deep/er <b>": "finished", "good": "finished", "torn": "finished"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_a_signal(number: signal.Signals, runs: Path) -> None:
    command = [sys.executable, "-m", "gradleak", "view", str(runs), "--port", "0", "--no-open"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    # Tests that run in the background may ignore Ctrl-C, and hand that on.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    signal.signal(signal.SIGINT, before)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    assert "shows the runs in" in process.stdout.readline()
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "ended\n", "")
