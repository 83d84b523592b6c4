"""Who takes part in loadtest/peers.py: this server, its peers and bare loops, ready to work."""

from __future__ import annotations

import contextlib
import json
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from cases import TEXT, picture
from harness import Connection, Reply, Server, memory_of, request, running_server
from peer_rembg import install as install_rembg
from peer_rembg import rembg_request, running_rembg
from peer_servers import PEER_SERVERS, install, running

from app.backends.onnx_conversion import onnx_bytes
from app.backends.process import NICE
from app.process.child import Child, Limits
from app.repository.layout import ModelFiles, ModelRepository

HERE = Path(__file__).resolve().parent

CHOOSING_SECONDS = 600
"""What a server may take for finding its default group, on a machine where nothing else runs."""

Busy = Callable[[float], float]
"""Keeps a contender busy for so many seconds; how many pictures or texts it did a second."""


@dataclass(slots=True, kw_only=True)
class Contender:
    """Someone who does the work. `one()` does it once, `busy` by name of the load.

    `threads_each` compute one request.
    """

    name: str
    threads_each: int
    one: Callable[[], tuple[float, bytes]]
    busy: Mapping[str, Busy]
    memory: Callable[[], int]
    seconds: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    result: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The same work for all; the first contender is this server."""

    task: str
    contenders: list[Contender]
    requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`clients` that each send `message` again and again; a reply counts as `units`."""

    clients: int
    message: bytes
    units: int = 1


def body_of(reply: Reply) -> bytes:
    return reply.body


def served(
    name: str,
    *,
    port: int,
    pid: int,
    message: bytes,
    loads: Mapping[str, Load],
    threads_each: int,
    read: Callable[[Reply], bytes] = body_of,
) -> Contender:
    """Anyone who answers over HTTP."""

    def one() -> tuple[float, bytes]:
        with contextlib.closing(Connection(port)) as connection:
            reply = connection.send(message)
        if reply.status != 200:
            raise RuntimeError(f"{name}: status {reply.status}: {reply.body[:300]!r}")
        return reply.seconds, read(reply)

    def busy(load: Load, seconds: float) -> float:
        """One thread for all clients: each thread more would take time from the server."""
        done, pending = 0, load.clients
        with contextlib.ExitStack() as stack:
            waiting = stack.enter_context(selectors.DefaultSelector())
            for _ in range(load.clients):
                connection = stack.enter_context(contextlib.closing(Connection(port)))
                waiting.register(connection, selectors.EVENT_READ)
                connection.write(load.message)
            began = time.perf_counter()
            while pending:
                for ready, _ in waiting.select():
                    connection = cast(Connection, ready.fileobj)
                    if connection.read().status != 200:
                        raise RuntimeError(f"{name}: a request failed under load")
                    done += load.units
                    if time.perf_counter() - began < seconds:
                        connection.write(load.message)
                    else:
                        pending -= 1
            return done / (time.perf_counter() - began)

    return Contender(
        name=name,
        one=one,
        busy={label: partial(busy, load) for label, load in loads.items()},
        memory=lambda: memory_of(pid)["pss"],
        threads_each=threads_each,
    )


def same_for(clients: tuple[int, ...], message: bytes) -> dict[str, Load]:
    return {f"{each} clients": Load(clients=each, message=message) for each in clients}


@contextlib.contextmanager
def loops(
    framework: str,
    task: str,
    *,
    model: Path,
    payload: bytes,
    threads: int,
    loads: tuple[str, ...],
    tokenizer: str = "",
) -> Iterator[Contender]:
    """One-thread loops, as many as there are threads; always busy, whatever the load's name."""
    opening = {
        "framework": framework,
        "task": task,
        "model": str(model),
        "threads": 1,
        "tokenizer": tokenizer,
    }
    limits = Limits(nice=NICE, environment={"PYTHONPATH": f"{HERE}:{HERE.parent}"})
    body = {"body": np.frombuffer(payload, np.uint8)}
    with contextlib.ExitStack() as stack:
        children = []
        for _ in range(threads):
            child = Child("peer_loops:open_loop", opening, limits=limits)
            children.append(stack.enter_context(contextlib.closing(child)))
        pool = stack.enter_context(ThreadPoolExecutor(threads))

        def one() -> tuple[float, bytes]:
            reply = children[0].call({"times": 1}, body, timeout=60)
            return reply.meta["durations"][0], reply.arrays["result"].tobytes()

        def busy(seconds: float) -> float:
            call = {"seconds": seconds}
            replies = pool.map(lambda c: c.call(call, body, timeout=seconds + 60).meta, children)
            return float(sum(reply["runs"] / reply["seconds"] for reply in replies))

        yield Contender(
            name=f"bare {framework} loop",
            threads_each=1,
            one=one,
            busy=dict.fromkeys(loads, busy),
            memory=lambda: sum(memory_of(child.pid)["pss"] for child in children),
        )


def as_onnx(files: ModelFiles, directory: Path) -> Path:
    """The served program as an ONNX file."""
    target = directory / f"{files.name}.onnx"
    manifest = files.manifest
    opening = {
        "directory": str(files.directory.resolve()),
        "program": manifest.program,
        "params": manifest.params,
    }
    target.write_bytes(onnx_bytes(opening))
    return target


@contextlib.contextmanager
def server_of_one(files: ModelFiles, scratch: Path) -> Iterator[tuple[Server, str]]:
    """A server with this model alone, so that its memory is that of the task, and the group that
    serves it by default: where that is "auto", after the server has chosen.

    Raises RuntimeError when it does not choose within ten minutes.
    """
    repository = scratch / f"only-{files.name}"
    shutil.copytree(files.directory.parent, repository / files.name)
    with running_server(repository, environment={"PADDLEPOOL_PROVE_GROUPS": "started"}) as server:
        begin = time.monotonic()
        while (choice := _choice(server))["by"] == "start":
            if time.monotonic() - begin > CHOOSING_SECONDS:
                raise RuntimeError(f"{files.name}: nothing chosen yet: {choice}")
            time.sleep(1)
        print(f"{files.name}: {choice['group']}, {choice['reason']}", file=sys.stderr)
        yield server, choice["group"]


def _choice(server: Server) -> dict[str, str]:
    with contextlib.closing(Connection(server.port)) as connection:
        [model] = json.loads(connection.send(request("GET", "/info")).body)["models"]
    return dict(model["choice"])


def newest(repository: ModelRepository, name: str) -> ModelFiles:
    return repository.read(name, repository.versions(name)[0])


def threads_of(files: ModelFiles, group: str) -> int:
    """Of one instance; 1 where the name is not that of a group."""
    return next((each.threads for each in files.config.instance_group if each.name == group), 1)


@contextlib.contextmanager
def pictures(
    repository: ModelRepository, scratch: Path, *, threads: int, peers: bool
) -> Iterator[list[Contest]]:
    """Masks, and cut-outs beside rembg's."""
    files = newest(repository, "u2netp")
    onnx, body, clients = as_onnx(files, scratch), picture(), (threads, 2 * threads)
    with contextlib.ExitStack() as stack:
        server, name = stack.enter_context(server_of_one(files, scratch))

        def ours(output: str) -> Contender:
            path = f"/segment?output={output}&format=png"
            message = request("POST", path, body, content_type="image/jpeg")
            return served(
                f"paddlepool /segment ({name})",
                port=server.port,
                pid=server.pid,
                message=message,
                loads=same_for(clients, message),
                threads_each=threads_of(files, name),
            )

        masks, cutouts = [ours("mask")], [ours("cutout")]
        if peers:
            for contenders, mask in ((masks, True), (cutouts, False)):
                message = rembg_request(body, mask=mask)
                if mask:
                    rembg = stack.enter_context(
                        running_rembg(install_rembg(), onnx, scratch / "rembg", threads=threads)
                    )
                contenders.append(
                    served(
                        "rembg server",
                        port=rembg.port,
                        pid=rembg.pid,
                        message=message,
                        loads=same_for(clients, message),
                        threads_each=threads,
                    )
                )
            masks += general_servers(stack, onnx, body, scratch, clients=clients, workers=threads)
        for framework in ("onnxruntime", "openvino"):
            loop = loops(
                framework,
                "picture",
                model=onnx,
                payload=body,
                threads=threads,
                loads=tuple(masks[0].busy),
            )
            masks.append(stack.enter_context(loop))
        yield [
            Contest(task="masks", contenders=masks, requests=4),
            Contest(task="cut-outs", contenders=cutouts, requests=4),
        ]


def general_servers(
    stack: contextlib.ExitStack,
    onnx: Path,
    body: bytes,
    scratch: Path,
    *,
    clients: tuple[int, ...],
    workers: int,
) -> Iterator[Contender]:
    """Those that can be installed and answer; the others are named, and left out."""
    for peer in PEER_SERVERS:
        try:
            install(peer)
            found = stack.enter_context(running(peer, onnx, scratch / peer.name, workers=workers))
        except (subprocess.SubprocessError, OSError, RuntimeError) as error:
            print(f"{peer.name} IS LEFT OUT: {error}", file=sys.stderr)
            continue
        message = peer.ask(body)
        yield served(
            peer.name,
            port=found.port,
            pid=found.pid,
            message=message,
            loads=same_for(clients, message),
            threads_each=1,
            read=peer.read,
        )


@contextlib.contextmanager
def texts(repository: ModelRepository, scratch: Path, *, threads: int) -> Iterator[list[Contest]]:
    """One text from each of many clients, and lists of 32 from few."""
    files = newest(repository, "emotion")
    onnx = as_onnx(files, scratch)
    single, several = (
        request(
            "POST",
            "/sentiment",
            json.dumps({"inputs": inputs}).encode(),
            content_type="application/json",
        )
        for inputs in (TEXT, [TEXT] * 32)
    )
    loads = {
        "32 clients": Load(clients=32, message=single),
        "4 of 32 texts": Load(clients=4, message=several, units=32),
    }
    with (
        server_of_one(files, scratch) as (server, name),
        loops(
            "onnxruntime",
            "text",
            model=onnx,
            payload=TEXT.encode(),
            threads=threads,
            loads=tuple(loads),
            tokenizer=str((files.directory / "tokenizer.json").resolve()),
        ) as bare,
    ):
        ours = served(
            f"paddlepool /sentiment ({name})",
            port=server.port,
            pid=server.pid,
            message=single,
            loads=loads,
            threads_each=threads_of(files, name),
        )
        yield [Contest(task="texts", contenders=[ours, bare], requests=40)]
