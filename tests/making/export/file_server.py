"""An HTTP server on 127.0.0.1 that serves one file, or refuses, or never answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Script:
    """How the server behaves; `requests` counts what it was asked."""

    content: bytes
    status: int = 200
    stalls: bool = False  # sends half of the file, and the rest never
    requests: int = 0
    released: threading.Event = field(default_factory=threading.Event)  # ends a stall


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.requests += 1
            if script.status != 200:
                self.send_error(script.status)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(script.content)))
            self.end_headers()
            if script.stalls:
                self.wfile.write(script.content[: len(script.content) // 2])
                self.wfile.flush()
                script.released.wait(30)
                return
            self.wfile.write(script.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The URL of the file while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(script))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/weights.onnx"
    finally:
        script.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
