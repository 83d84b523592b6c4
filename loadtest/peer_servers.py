"""Other servers as peers, each installed once in its own environment.

They serve u2netp's float32 ONNX with ONNX Runtime. The programs in peer_programs/ follow each
server's documentation, with one single-threaded worker per core. rembg has no workers and uses all
threads for one picture.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cases import form, load_request
from harness import (
    HOST,
    ROOT,
    Reply,
    Server,
    free_port,
    json_request,
    request,
    running_program,
    send,
    wait_until,
)
from load_clients import checked

from paddlepool.engine.backends.process import NICE

PROGRAMS = Path(__file__).resolve().parent / "peer_programs"
INSTALL_SECONDS = 600.0
START_SECONDS = 240.0
RUNTIME = ("onnxruntime==1.31.1", "opencv-python-headless==5.0.0.93")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerServer:
    """How to install, start and call a peer server.

    `variant` names the environment of a package that is installed twice.
    `command(bin, port)` starts it in a directory that `prepare(home, port, workers, model)` has
    filled; that also returns environment variables. `ready` is a path that answers 200;
    `warm_up(server)` waits until the server has its final configuration.
    `build(picture)` builds a request, and `read(reply)` returns its mask as PNG. `change(server)`
    reloads the model while the server runs, as `changed_by` describes; None if that needs a
    restart.
    """

    name: str
    package: str
    variant: str = ""
    command: Callable[[Path, int], Sequence[object]]
    ready: str
    build: Callable[[bytes], bytes]
    read: Callable[[Reply], bytes] = lambda reply: reply.body
    also: tuple[str, ...] = RUNTIME
    prepare: Callable[[Path, int, int, Path], Mapping[str, str]] = lambda *_: {}
    change: Callable[[Server], None] | None = None
    changed_by: str = "restart"
    warm_up: Callable[[Server], object] = lambda _: None
    nice: int = NICE
    """By default the priority of the computing processes of the others."""

    @property
    def environment(self) -> Path:
        package = self.package.partition("==")[0].partition("[")[0]
        return ROOT / "-".join(filter(None, (".venv-peers", package, self.variant)))

    @property
    def installed(self) -> Path:
        """A file that exists if the environment is complete."""
        return self.environment / "installed"


def rembg_cutout(picture: bytes) -> bytes:
    return form("/api/remove", "file", picture, model="u2netp")


def _rembg_files(home: Path, _port: int, workers: int, model: Path) -> Mapping[str, str]:
    shutil.copyfile(model, home / "u2netp.onnx")
    return {
        "U2NET_HOME": str(home),
        "MODEL_CHECKSUM_DISABLED": "1",  # uses our weights instead of its own download
        "OMP_NUM_THREADS": str(workers),
        "NUMBA_NUM_THREADS": str(workers),
        "OPENBLAS_NUM_THREADS": str(workers),
        "BROWSER": "true",  # it opens one at start
    }


def _tensor(picture: bytes) -> bytes:
    """The Open Inference Protocol's JSON with the picture in base64."""
    tensor = {
        "name": "image",
        "shape": [1, 1],
        "datatype": "BYTES",
        "parameters": {"content_type": "base64"},
        "data": [base64.b64encode(picture).decode()],
    }
    return json_request("/v2/models/u2netp/infer", {"inputs": [tensor]})


def _binary_tensor(picture: bytes) -> bytes:
    """The Open Inference Protocol's request with the picture as bytes behind the JSON."""
    tensor = len(picture).to_bytes(4, "little") + picture
    inputs: dict[str, object] = {"name": "image", "shape": [1, 1], "datatype": "BYTES"}
    outputs = [{"name": "mask", "parameters": {"binary_data": True}}]
    inputs["parameters"] = {"binary_data_size": len(tensor)}
    head = json.dumps({"inputs": [inputs], "outputs": outputs}).encode()
    return request(
        "POST",
        "/v2/models/u2netp/infer",
        head + tensor,
        content_type="application/octet-stream",
        headers={"Inference-Header-Content-Length": str(len(head))},
    )


def _triton_files(*_: object) -> Mapping[str, str]:
    # Its process for a Python model would otherwise load the system's libpython, even of another
    # patch version than the standard library that it imports.
    return {"LD_LIBRARY_PATH": str(sysconfig.get_config_var("LIBDIR"))}


def _read_binary_tensor(reply: Reply) -> bytes:
    """Return the only element of the only output."""
    head = int(reply.headers["inference-header-content-length"])
    return reply.body[head + 4 :]


def _mlserver_files(home: Path, port: int, workers: int, _model: Path) -> Mapping[str, str]:
    settings: dict[str, Any] = {
        "host": HOST,
        "http_port": port,
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "parallel_workers": workers,
    }
    model = {"name": "u2netp", "implementation": "mlserver_peer.Masks"}
    (home / "settings.json").write_text(json.dumps(settings), "utf-8")
    (home / "model-settings.json").write_text(json.dumps(model), "utf-8")
    return {}


def _mlserver_load(server: Server) -> None:
    checked(send(server.port, load_request("u2netp")))


def _ray_deploy(server: Server) -> None:
    deployed = server.directory / "deployed"
    deployed.unlink()
    os.kill(server.pid, signal.SIGHUP)
    what = "Ray Serve did not deploy the application again"
    wait_until(deployed.exists, what, timeout=START_SECONDS)


REMBG = PeerServer(
    name="rembg",
    package="rembg[cpu,cli]==2.0.86",
    also=(),
    command=lambda bin, port: (bin / "rembg", "s", "--host", HOST, "--port", port, "--no-ui"),
    ready="/openapi.json",
    build=lambda picture: form("/api/remove", "file", picture, model="u2netp", om="true"),
    prepare=_rembg_files,
)
PEER_SERVERS = (
    REMBG,
    replace(
        REMBG,
        name="rembg, OpenVINO",
        package="rembg[cli]==2.0.86",
        variant="openvino",
        also=("onnxruntime-openvino==1.24.1",),  # rembg then uses its provider
    ),
    PeerServer(
        name="LitServe",
        package="litserve==0.2.19",
        also=(*RUNTIME, "python-multipart==0.0.34"),  # an undeclared requirement of forms
        command=lambda bin, _port: (bin / "python", PROGRAMS / "litserve_peer.py"),
        ready="/health",
        build=lambda picture: form("/predict", "image", picture),
    ),
    PeerServer(
        name="BentoML",
        package="bentoml==1.4.39",
        command=lambda bin, port: [
            *(bin / "bentoml", "serve", "bentoml_peer:Masks"),
            *("--host", HOST, "--port", port, "--working-dir", PROGRAMS),
        ],
        ready="/readyz",
        build=lambda picture: form("/mask", "image", picture),
    ),
    PeerServer(
        name="MLServer",
        package="mlserver==1.7.1",
        also=(*RUNTIME, "uvloop==0.21.0"),  # its workers do not start with a newer version
        command=lambda bin, _port: (bin / "mlserver", "start", "."),
        ready="/v2/models/u2netp/ready",
        build=_tensor,
        read=lambda reply: base64.b64decode(json.loads(reply.body)["outputs"][0]["data"][0]),
        prepare=_mlserver_files,
        change=_mlserver_load,
        changed_by="POST to its repository API",
    ),
    PeerServer(
        name="Ray Serve",
        package="ray[serve]==2.60.0",
        command=lambda bin, _port: (bin / "python", PROGRAMS / "ray_peer.py"),
        ready="/",
        build=lambda picture: request("POST", "/", picture, content_type="image/jpeg"),
        change=_ray_deploy,
        changed_by="serve.run() again",
    ),
    PeerServer(
        name="Triton",
        package="nvidia-pytriton==0.7.0",
        also=("onnxruntime==1.31.1", "opencv-python-headless==4.11.0.86"),  # with its NumPy 1
        command=lambda bin, _port: (bin / "python", PROGRAMS / "triton_peer.py"),
        ready="/v2/models/u2netp/ready",
        build=_binary_tensor,
        read=_read_binary_tensor,
        prepare=_triton_files,
    ),
)


def install(peer: PeerServer) -> None:
    """Create its environment once. Raises CalledProcessError and TimeoutExpired."""
    if peer.installed.exists():
        return
    print(f"installing {peer.package} into {peer.environment.name}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", str(peer.environment)], check=True)
    pip = [str(peer.environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run(
        [*pip, "--disable-pip-version-check", peer.package, *peer.also],
        check=True,
        timeout=INSTALL_SECONDS,
    )
    peer.installed.touch()


def running(
    peer: PeerServer, model: Path, home: Path, *, workers: int, port: int | None = None
) -> AbstractContextManager[Server]:
    """Serve the ONNX file with this many workers. Raises RuntimeError with the end of its log."""
    home.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    bin = peer.environment / "bin"
    environment = {
        "PATH": f"{bin}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(PROGRAMS),
        "PEER_MODEL": str(model.resolve()),
        "PEER_PORT": str(port),
        "PEER_WORKERS": str(workers),
        "OMP_NUM_THREADS": "1",
        **peer.prepare(home, port, workers, model),
    }
    command = ["nice", "-n", peer.nice, *peer.command(bin, port)]
    return running_program(
        command,
        port,
        path=peer.ready,
        environment=environment,
        timeout=START_SECONDS,
        directory=home,
    )
