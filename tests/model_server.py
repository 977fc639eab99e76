"""A model server on loopback that answers by a script and remembers what it was asked.

What an answer looks like in one API is made by a function of its own, like `completion`; the server knows none of them.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any
    """Parsed JSON."""


@dataclass(frozen=True)
class Reply:
    """One scripted answer."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Takes the request and says nothing until the server ends."""
    cut_after: int | None = None
    """Promises the whole body, sends so many bytes of it and hangs up. Below 0: not even a status."""
    pause_s: float = 0.0
    """Sends byte by byte with this pause, so that something always comes."""


Script = Reply | Callable[[Asked], Reply]


class ModelServer:
    """Answers requests in the order of its script; the last answer is given again and again."""

    def __init__(self, *script: Script) -> None:
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._script, self._lock = script, threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        self.address = f"http://127.0.0.1:{self._http.server_address[1]}"

    def answer(self, asked: Asked) -> Reply:
        """The next answer of the script."""
        with self._lock:
            step = self._script[min(len(self.asked), len(self._script) - 1)]
            self.asked.append(asked)
        return step if isinstance(step, Reply) else step(asked)

    def run(self) -> None:
        """Serve until `close`."""
        self._http.serve_forever(poll_interval=0.01)

    def close(self) -> None:
        """End what hangs, and serve no more."""
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()


@contextlib.contextmanager
def serve(*script: Script) -> Iterator[ModelServer]:
    """A server with that script, ended on leaving."""
    server = ModelServer(*script)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def _handler_for(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with contextlib.suppress(ConnectionError):  # a client that has heard enough
                self._send(server.answer(Asked(self.path, headers, json.loads(content))))

        def _send(self, reply: Reply) -> None:
            if reply.hangs:
                server.closing.wait()
            if reply.hangs or (reply.cut_after or 0) < 0:
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if reply.pause_s:
                self._drip(reply)
            else:
                self.wfile.write(reply.body[: reply.cut_after])

        def _drip(self, reply: Reply) -> None:
            for byte in reply.body:
                if server.closing.wait(reply.pause_s):
                    return
                self.wfile.write(bytes([byte]))
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Say nothing on stderr."""

    return Handler


def completion(text: str | None, **message: Any) -> Reply:
    """A model's text, as Chat Completions has it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return Reply(json.dumps({"object": "chat.completion", "choices": [choice]}).encode())


def refusal(status: int, message: str = "no", **headers: str) -> Reply:
    """An error, as all of the APIs have it; `_` in a header's name stands for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(json.dumps({"error": {"message": message}}).encode(), status, named)
