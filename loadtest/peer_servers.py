"""Other servers as peers, each installed once into an environment of its own.

They serve u2netp's float32 ONNX by ONNX Runtime: LitServe with the program in peer_programs/, which
is written as its documentation suggests, a worker of one thread for each core; rembg has no workers
and computes one picture with all threads.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cases import form
from harness import HOST, ROOT, Server, free_port, is_ready, running_program

from app.engine.backends.process import NICE

PROGRAMS = Path(__file__).resolve().parent / "peer_programs"
INSTALL_SECONDS = 600.0
START_SECONDS = 240.0
RUNTIME = ("onnxruntime==1.31.1", "opencv-python-headless==5.0.0.93")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerServer:
    """How one of them is installed, started and asked.

    `command(bin, port)` starts it in a directory that `prepare(home, workers, model)` has filled,
    which returns variables for it; `ready` is a path that answers 200; `ask(picture)` is a
    request that is answered with the mask as PNG.
    """

    name: str
    package: str
    command: Callable[[Path, int], list[str]]
    ready: str
    ask: Callable[[bytes], bytes]
    also: tuple[str, ...] = RUNTIME
    prepare: Callable[[Path, int, Path], Mapping[str, str]] = lambda *_: {}

    @property
    def environment(self) -> Path:
        return ROOT / f".venv-peers-{self.package.partition('==')[0].partition('[')[0]}"


def rembg_cutout(picture: bytes) -> bytes:
    return form("/api/remove", "file", picture, model="u2netp")


def _rembg_files(home: Path, workers: int, model: Path) -> Mapping[str, str]:
    shutil.copyfile(model, home / "u2netp.onnx")
    return {
        "U2NET_HOME": str(home),
        "MODEL_CHECKSUM_DISABLED": "1",  # the weights are ours, not those of its download
        "OMP_NUM_THREADS": str(workers),
        "NUMBA_NUM_THREADS": str(workers),
        "OPENBLAS_NUM_THREADS": str(workers),
        "BROWSER": "true",  # it opens one at its start
    }


REMBG = PeerServer(
    name="rembg",
    package="rembg[cpu,cli]==2.0.86",
    also=(),
    command=lambda bin, port: [
        *(str(bin / "rembg"), "s", "--host", HOST, "--port", str(port), "--no-ui"),
    ],
    ready="/openapi.json",
    ask=lambda picture: form("/api/remove", "file", picture, model="u2netp", om="true"),
    prepare=_rembg_files,
)
PEER_SERVERS = (
    REMBG,
    PeerServer(
        name="LitServe",
        package="litserve==0.2.19",
        also=(*RUNTIME, "python-multipart==0.0.34"),  # which it needs for forms, undeclared
        command=lambda bin, _port: [str(bin / "python"), str(PROGRAMS / "litserve_peer.py")],
        ready="/health",
        ask=lambda picture: form("/predict", "image", picture),
    ),
)


def install(peer: PeerServer) -> None:
    """Make its environment once. Raises CalledProcessError and TimeoutExpired."""
    done = peer.environment / "installed"
    if done.exists():
        return
    print(f"installing {peer.package} into {peer.environment.name}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(peer.environment)], check=True)
    pip = [str(peer.environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", peer.package, *peer.also],
        check=True,
        timeout=INSTALL_SECONDS,
    )
    done.touch()


@contextlib.contextmanager
def running(peer: PeerServer, model: Path, home: Path, *, workers: int) -> Iterator[Server]:
    """Serve the ONNX file with so many workers. Raises RuntimeError with the end of its log."""
    home.mkdir(parents=True)
    port = free_port()
    bin = peer.environment / "bin"
    environment = {
        "PATH": f"{bin}:{os.environ.get('PATH', '')}",
        "PEER_MODEL": str(model.resolve()),
        "PEER_PORT": str(port),
        "PEER_WORKERS": str(workers),
        "OMP_NUM_THREADS": "1",
        **peer.prepare(home, workers, model),
    }
    # At the priority that the others' computing processes have.
    command = ["nice", "-n", str(NICE), *peer.command(bin, port)]
    with running_program(
        command,
        lambda: is_ready(port, peer.ready),
        environment=environment,
        timeout=START_SECONDS,
        directory=home,
    ) as process:
        yield Server(port, process.pid)
