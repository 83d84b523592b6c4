"""A server on this machine in place of one that a program or a test talks to."""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]
RequestOutput = Callable[[str, bytes], Reply | None]
"""Path with query and body of a request in; status, headers and body of the reply out.

None closes the connection without a reply."""


def as_json(value: Any, status: int = 200) -> Reply:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


class Server(ThreadingHTTPServer):
    """Serves each connection in a thread, which may outlive the test that opened it."""

    # Of 5, a burst of clients loses some, who try again a second later.
    request_queue_size = 1024

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about a client that has left: a later test may read what is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def http_stub(respond: RequestOutput) -> Iterator[str]:
    """A server on a free port of this machine that replies as `answer` says; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if (replied := respond(self.path, self.rfile.read(length))) is None:
                self.close_connection = True
                return
            status, headers, body = replied
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = reply  # noqa: N815  # the names that the library calls

        def log_message(self, *args: Any) -> None:
            del args

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
