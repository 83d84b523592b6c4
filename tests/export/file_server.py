"""A scripted HTTP server on 127.0.0.1 that serves one file well or badly."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Script:
    """How the server behaves; `requests` records the Range header of each request it saw."""

    content: bytes
    cut_after: list[int] = field(default_factory=list)  # bytes sent before hanging up, in turn
    ignore_range: bool = False
    shift_range: int = 0  # answers from this many bytes beside what was asked for
    status: int = 200
    stall_after: int | None = None
    released: threading.Event = field(default_factory=threading.Event)  # ends a stall
    requests: list[str | None] = field(default_factory=list)


def _handler(script: Script) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            script.requests.append(asked)
            if script.status != 200:
                self.send_error(script.status)
                return
            start = 0
            if asked and not script.ignore_range:
                start = int(asked.removeprefix("bytes=").removesuffix("-")) + script.shift_range
                self.send_response(206)
                end = len(script.content)
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
            else:
                self.send_response(200)
            body = script.content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if script.stall_after is not None:
                self.wfile.write(body[: script.stall_after])
                self.wfile.flush()
                script.released.wait(30)
                return
            self.wfile.write(body[: script.cut_after.pop(0)] if script.cut_after else body)

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
