"""The rembg server as a peer: installed into an environment of its own, over the same weights."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness import HOST, ROOT, Connection, free_port, request

from app.backends.process import NICE

ENVIRONMENT = ROOT / ".venv-peers"
PACKAGE = "rembg[cpu,cli]==2.0.86"
START_SECONDS = 240.0
BOUNDARY = "a-picture-and-nothing-else"


def install() -> Path:
    """Make the environment once; returns its rembg. Raises CalledProcessError."""
    program = ENVIRONMENT / "bin" / "rembg"
    if not program.exists():
        print(f"installing {PACKAGE} into {ENVIRONMENT.name} (826 MB)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "--disable-pip-version-check", PACKAGE], check=True)
    return program


def rembg_request(picture: bytes, *, mask: bool) -> bytes:
    """The request that answers with u2netp's mask alone, or with the cut-out."""
    fields = {"model": "u2netp"} | ({"om": "true"} if mask else {})
    return picture_request(picture, fields)


def picture_request(picture: bytes, fields: Mapping[str, str]) -> bytes:
    """A form with the fields and the picture."""
    parts = "".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="p.jpg"\r\n'
        "Content-Type: image/jpeg\r\n\r\n"
    )
    body = parts.encode() + head.encode() + picture + f"\r\n--{BOUNDARY}--\r\n".encode()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    return request("POST", "/api/remove", body, content_type=kind)


@dataclass(frozen=True, slots=True)
class RembgServer:
    """A running `rembg s`."""

    port: int
    pid: int


@contextlib.contextmanager
def running_rembg(program: Path, onnx: Path, home: Path, *, threads: int) -> Iterator[RembgServer]:
    """Serve `onnx` as rembg's u2netp from `home` with so many threads; needs no network.

    Raises RuntimeError with the end of its log when it does not answer in time.
    """
    home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(onnx, home / "u2netp.onnx")
    port = free_port()
    environment = os.environ | {
        "U2NET_HOME": str(home),
        "MODEL_CHECKSUM_DISABLED": "1",  # the weights are ours, not those of its download
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": str(threads),
        "BROWSER": "true",  # it opens one at its start
    }
    log_file = home / "rembg.log"
    address = ["--host", HOST, "--port", str(port)]
    # At the priority that the others' computing processes have.
    command = ["nice", "-n", str(NICE), str(program), "s", *address, "--no-ui"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log_file.read_text(errors="replace")[-1500:]
                raise RuntimeError(f"rembg does not answer:\n{tail}")
            time.sleep(0.2)
        yield RembgServer(port, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, ValueError):
        connection = Connection(port, timeout=5)
        with contextlib.closing(connection):
            return connection.send(request("GET", "/openapi.json")).status == 200
    return False
