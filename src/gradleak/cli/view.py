"""`gradleak view`: a page of this machine alone that lists runs, follows those that go on, and opens their reports."""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
import time
import webbrowser
from collections import OrderedDict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

import typer

from gradleak.cli.process import end_by_signal
from gradleak.results import GradleakError, InputError, Record
from gradleak.results.files import write_file

PORT = 8377
ADDRESS = "127.0.0.1"
# Pages that are kept, so that going back does not make them again.
KEPT = 8
# A record that takes long to read is read less often: its last reading lasts so many times as long.
RESTS = 10
_PLAIN = "text/plain; charset=utf-8"
_NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'"
_UNKNOWN = "There is nothing here. Open the address that gradleak view has printed."
Answer = tuple[int, str, str, bytes]


class Viewer(ThreadingHTTPServer):
    """Server of the page, on the loopback address alone.

    It answers GET and HEAD under an address that holds a random word, which nobody else on this machine knows, and only
    where the browser asks for this address by its name: no page of elsewhere can lead or point a browser here. Runs are
    looked up by name among those that were found in the folder; no path of a request ever reaches the file system.

    Attributes:
        folder: of the runs.
        word: the random word.
    """

    daemon_threads = True
    # Elsewhere it would take the port of a server that runs.
    allow_reuse_address = os.name == "posix"

    def __init__(self, folder: Path, port: int) -> None:
        """Take a port.

        Args:
            folder: of the runs.
            port: to listen on; 0 for any that is free.

        Raises:
            InputError: if the port is taken or reserved, or there is no such folder.
        """
        if not folder.is_dir():
            found = "a file" if folder.exists() else "none"
            raise InputError(
                f"{folder}: expected a folder of runs, got {found}; name that of `gradleak audit --out`, or above it"
            )
        self.folder, self.word = folder, secrets.token_urlsafe(24)
        self._lock = Lock()
        self._runs: dict[str, tuple[tuple[int, ...], float, Any]] = {}
        self._pages: OrderedDict[tuple[Any, ...], str] = OrderedDict()
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise InputError(
                f"--port: expected a port that is free, got {port} ({error.strerror}); name another one, or 0 for any"
            ) from error

    @property
    def address(self) -> str:
        """The address of the page."""
        return f"http://{ADDRESS}:{self.server_port}/{self.word}/"

    def answer(self, route: str, query: Mapping[str, str]) -> Answer:
        """Status, type, policy and content of what was asked for.

        Args:
            route: behind the random word.
            query: its parameters.
        """
        # Drawings are made one at a time.
        with self._lock:
            return self._routes.get(route, _unknown)(query)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing where a browser has gone away."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    @property
    def _routes(self) -> Mapping[str, Callable[[Mapping[str, str]], Answer]]:
        return {"": self._list, "runs.json": self._json, "report": self._report, "diff": self._diff}

    def _list(self, query: Mapping[str, str]) -> Answer:
        from gradleak.reporting.html import policy
        from gradleak.reporting.runs import SCRIPTS, render_runs

        page = render_runs(self._found(), self.folder, time.time())
        return _page(200, page, policy(SCRIPTS, connects=True))

    def _json(self, query: Mapping[str, str]) -> Answer:
        from gradleak.reporting.runs import as_json

        content = json.dumps(as_json(self._found(), time.time())).encode()
        return 200, "application/json", _NOTHING, content

    def _found(self) -> list[Any]:
        """The runs, each read again where its file has changed."""
        from gradleak.reporting.runs import Run, State, find_runs

        files, now = find_runs(self.folder), time.monotonic()
        for name in self._runs.keys() - files.keys():
            del self._runs[name]
        for name, file in files.items():
            stamp, again, run = self._runs.get(name, ((), 0.0, None))
            # A lock is taken and let go without a trace in the file.
            idle = run is not None and run.state is State.FINISHED and stamp == _stamp(file)
            if idle or now < again:
                continue
            stamp, begun = _stamp(file), time.monotonic()
            run = Run.read(name, file)
            took = time.monotonic() - begun
            self._runs[name] = (stamp, now + RESTS * took, run)
        return [run for _, _, run in self._runs.values()]

    def _report(self, query: Mapping[str, str]) -> Answer:
        from gradleak.reporting.html import render_html
        from gradleak.reporting.page import assemble

        return self._made(query, ("run",), lambda record: render_html(assemble(record)))

    def _diff(self, query: Mapping[str, str]) -> Answer:
        from gradleak.reporting.diff import difference
        from gradleak.reporting.html import render_html

        return self._made(query, ("before", "after"), lambda one, two: render_html(difference(one, two)))

    def _made(self, query: Mapping[str, str], keys: tuple[str, ...], make: Callable[..., str]) -> Answer:
        """A page on the runs that a query names; why there is none, if there is none."""
        from gradleak.reporting.html import policy
        from gradleak.reporting.runs import find_runs

        files = find_runs(self.folder)
        chosen = [query.get(key, "") for key in keys]
        if not all(chosen):
            return _message(400, "Nothing to show", f"Choose {' and '.join(keys)}.")
        if not all(name in files for name in chosen):
            return _message(404, "No such run", "It is not in this folder, or not any more.")
        known = (keys, *((name, _stamp(files[name])) for name in chosen))
        if known not in self._pages:
            try:
                self._pages[known] = make(*(Record.load(files[name]) for name in chosen))
            except GradleakError as error:
                return _message(422, "Not readable", str(error))
            while len(self._pages) > KEPT:
                self._pages.popitem(last=False)
        return _page(200, self._pages[known], policy())


class Handler(BaseHTTPRequestHandler):
    """Handler of one request."""

    server: Viewer
    server_version = "gradleak"
    sys_version = ""
    # In seconds, for a browser that sends nothing.
    timeout = 10

    def do_GET(self) -> None:
        """Answer with what was asked for."""
        self._send(*self._answer())

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what cannot be answered, in plain text."""
        # The library says 501 of a method that it does not know.
        refused = (405, b"Only GET and HEAD are answered here.") if code == 501 else (code, (message or "").encode())
        self.close_connection = True
        self._send(refused[0], _PLAIN, _NOTHING, refused[1])

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: what others send does not belong on a terminal."""

    def _answer(self) -> Answer:
        port = self.server.server_port
        if self.headers.get_all("Host") not in ([f"{ADDRESS}:{port}"], [f"localhost:{port}"]):
            # A name of somebody else that leads here, so that their page could read the answer.
            return 421, _PLAIN, _NOTHING, b"This server answers to its own address alone."
        asked = urlsplit(self.path)
        _, word, route = (*asked.path.split("/", 2), "", "")[:3]
        if not secrets.compare_digest(word.encode(errors="replace"), self.server.word.encode()):
            return 404, _PLAIN, _NOTHING, _UNKNOWN.encode()
        try:
            given = parse_qs(asked.query, strict_parsing=bool(asked.query), errors="strict", max_num_fields=4)
        except ValueError:
            return 400, _PLAIN, _NOTHING, b"These parameters cannot be read."
        return self.server.answer(route, {key: values[0] for key, values in given.items() if len(values) == 1})

    def _send(self, status: int, kind: str, policy: str, content: bytes) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Content-Security-Policy": f"{policy}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        } | ({"Allow": "GET, HEAD"} if status == 405 else {})
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def view(
    folder: Annotated[Path, typer.Argument(help="Folder of runs, or of one run; folders in it are looked at, too.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine; 0 for any that is free.")] = PORT,
    opened: Annotated[bool, typer.Option("--open/--no-open", help="Show the page in a browser.")] = True,
) -> None:
    """Show runs on a page of this machine alone: verdicts, how far those are that go on, reports, two side by side."""
    with Viewer(folder, port) as server, tempfile.TemporaryDirectory(prefix="gradleak-") as beside:
        Thread(target=server.serve_forever, daemon=True).start()
        wait = end_by_signal()
        typer.echo(f"{server.address}\nshows the runs in {folder} to you alone. Ctrl-C ends it.")
        if opened and _has_browser():
            # A process list shows the words of a command to everybody: the address stands in a file of ours.
            leads = f'<meta http-equiv="refresh" content="0; url={server.address}"><a href="{server.address}">Runs</a>'
            webbrowser.open(write_file(Path(beside) / "runs.html", leads).as_uri())
        wait()
        server.shutdown()
    typer.echo("ended")


def _has_browser() -> bool:
    """True if there is a window to show a page in; a browser in the terminal would take that."""
    return not sys.platform.startswith("linux") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _stamp(file: Path) -> tuple[int, ...]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _page(status: int, page: str, policy: str) -> Answer:
    return status, "text/html; charset=utf-8", policy, page.encode()


def _message(status: int, title: str, text: str) -> Answer:
    from gradleak.reporting.html import policy
    from gradleak.reporting.runs import render_message

    return _page(status, render_message(title, text), policy(()))


def _unknown(query: Mapping[str, str]) -> Answer:
    return 404, _PLAIN, _NOTHING, _UNKNOWN.encode()
