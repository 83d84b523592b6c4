"""Scripts of deploy/ and loadtest/ as modules, and a stand-in for what they talk to."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

Reply = tuple[int, dict[str, str], bytes]
Answer = Callable[[str, bytes], Reply]
"""Path with query and body of a request in; status, headers and body of the reply out."""


def as_json(value: Any, status: int = 200) -> Reply:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


@pytest.fixture
def script() -> Iterator[Callable[[str], ModuleType]]:
    """Import a file of the project that is no part of the package, by its path."""
    before = set(sys.modules)

    def load(path: str) -> ModuleType:
        file = ROOT / path
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(f"script_{file.stem}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(file.parent))
        return module

    yield load
    for name in set(sys.modules) - before:
        origin = getattr(sys.modules[name], "__file__", None)
        if origin and Path(origin).is_relative_to(ROOT / "deploy"):
            del sys.modules[name]


@contextmanager
def http_stub(answer: Answer) -> Iterator[str]:
    """A server on a free port of this machine that replies as `answer` says; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            status, headers, body = answer(self.path, self.rfile.read(length))
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = reply  # noqa: N815  # the names that the library calls

        def log_message(self, *args: Any) -> None:
            del args

    class Server(ThreadingHTTPServer):
        request_queue_size = (
            1024  # of 5, a burst of clients loses some, who try again a second later
        )

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def stub() -> Iterator[Callable[[Answer], str]]:
    with ExitStack() as stack:
        yield lambda answer: stack.enter_context(http_stub(answer))
