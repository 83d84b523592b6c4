"""A server of a test's own, for clients that are tested."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import HOST


@contextlib.contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    """Let the handler answer on a free port while the block runs."""
    server = ThreadingHTTPServer((HOST, 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()
