"""Ray Serve on four nodes of this machine: replicas that come and go, and a node that dies.

    make .venv-ray/.installed
    .venv-ray/bin/python loadtest/ray_cluster.py [--ingress HAProxy] [--users 12]

A head without a replica and three nodes of one core. Users with `paddlepool_client`, which asks
again as it is documented to, make one replica three; one node is killed and later replaced; when
the users are gone one replica is left. Then two are replaced by new ones under load (`rolling`).
Every answer is compared with the calm one. Exit code 1: a wrong answer, fewer than 99.9 % answered,
or another number of replicas than there should be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cases import picture
from harness import HOST, descendants, free_port, memory_of
from replicas import ENVIRONMENT, SHARE, Ask, Lost, Tally, users
from under_ray import INGRESSES, OBJECT_STORE_BYTES, QUIET

from paddlepool_client import Client, RequestFailed

NAME = "paddlepool"
PATIENT = {
    "PADDLEPOOL_STATE_FILE": "off",
    # Servers that load beside others on two cores answer late.
    "PADDLEPOOL_TIMEOUT_DEFAULT_MS": "60000",
    "PADDLEPOOL_TIMEOUT_MAX_MS": "60000",
}
NODES = 3
PATIENCE_SECONDS = 240.0
SETTLED_SECONDS = 20.0
SCALE: Mapping[str, Any] = {
    "num_cpus": 1,
    "max_replicas": NODES,
    "upscale_delay_s": 3,
    "downscale_delay_s": 10,
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--ingress", choices=INGRESSES, default="HAProxy")
    arguments.add_argument("--users", type=int, default=12)
    given = arguments.parse_args()
    # Before Ray is imported, and for what it starts.
    os.environ.update(ENVIRONMENT | QUIET | PATIENT)
    os.environ.update(INGRESSES[given.ingress])
    failed = False
    with tempfile.TemporaryDirectory(prefix="ray") as directory, cluster(Path(directory)) as nodes:
        port = deploy()
        calm = [ask() for ask in asks(port)]
        asking = list(zip(asks(port) * (given.users // 2), calm * (given.users // 2), strict=True))
        for name, part in {"scaling": lambda: scaling(nodes), "rolling": rolling}.items():
            with users(asking) as tally:
                print(f"{name}, {given.users} users:")
                part()
            failed |= judged(name, tally)
            until(1, "replicas are left when nobody asks")
    return 1 if failed else 0


def scaling(nodes: Any) -> None:
    """One replica becomes three, loses a node, gets another."""
    until(NODES, "replicas")
    print(f"  {memory()}")
    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
    until(NODES - 1, "replicas after a node was killed")
    time.sleep(SETTLED_SECONDS)
    add_node(nodes)
    until(NODES, "replicas after a node was added")
    time.sleep(SETTLED_SECONDS)


def rolling() -> None:
    """Two replicas are replaced: another figure makes another version."""
    until(2, "replicas or more", least=True)
    before = replicas()
    run({**SCALE, "num_cpus": 0.9})
    began = time.perf_counter()
    while replicas() & before or len(replicas()) < 2:
        patient(began, "new replicas")
    print(f"  all replaced after {time.perf_counter() - began:.0f} s")


def judged(name: str, tally: Tally) -> bool:
    print(f"  {name}: {tally}")
    return tally.share < SHARE or tally.wrong > 0


def asks(port: int) -> list[Ask]:
    """A mask and a text, by the client that asks again."""
    client = Client(f"http://{HOST}:{port}", timeout=90)
    jpeg = picture()
    return [
        _ask(lambda: client.segment(jpeg, output="mask", predictor="onednn").content),
        _ask(lambda: repr(client.sentiment(["今天天气真好"], predictor="onednn")).encode()),
    ]


def _ask(call: Callable[[], bytes]) -> Ask:
    def ask() -> bytes:
        try:
            return call()
        except RequestFailed as error:
            raise Lost(f"{type(error).__name__}: {str(error)[:200]}") from error

    return ask


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[Any]:
    """A head and the nodes, connected to; every process of them ends with the block."""
    os.environ["RAY_TMPDIR"] = str(directory)
    (directory / "ray").mkdir()
    import ray
    from ray.cluster_utils import Cluster

    began = time.perf_counter()
    nodes = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 0,
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        for _ in range(NODES):
            add_node(nodes)
        ray.init(nodes.address, log_to_driver=False)
        print(f"{NODES + 1} nodes after {time.perf_counter() - began:.0f} s")
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()


def add_node(nodes: Any) -> None:
    nodes.add_node(num_cpus=1, object_store_memory=OBJECT_STORE_BYTES)


def deploy() -> int:
    """One replica that answers; the port."""
    from ray import serve
    from ray.serve.config import HTTPOptions, ProxyLocation

    port, began = free_port(), time.perf_counter()
    serve.start(
        proxy_location=ProxyLocation.HeadOnly,  # the nodes have one address and one port here
        http_options=HTTPOptions(host=HOST, port=port),
    )
    run(SCALE)
    print(f"1 replica answers after {time.perf_counter() - began:.0f} s")
    return port


def run(scale: Mapping[str, Any]) -> None:
    from ray import serve

    from app.scale.ray import application

    serve.run(application(scale), name=NAME, route_prefix="/")


def replicas() -> set[str]:
    """The names of those that answer."""
    from ray.serve.context import _get_global_client

    details = _get_global_client().get_serve_details()
    found = details["applications"][NAME]["deployments"][NAME]["replicas"]
    return {each["replica_id"] for each in found if each["state"] == "RUNNING"}


def until(count: int, what: str, *, least: bool = False) -> None:
    """Wait for so many replicas. Raises RuntimeError when they never are."""
    began = time.perf_counter()
    while not (len(replicas()) >= count if least else len(replicas()) == count):
        patient(began, f"{count} {what}")
    print(f"  {count} {what}: after {time.perf_counter() - began:.0f} s")


def patient(began: float, what: str) -> None:
    if time.perf_counter() - began > PATIENCE_SECONDS:
        raise RuntimeError(f"no {what} within {PATIENCE_SECONDS:.0f} s; there are {replicas()}")
    time.sleep(0.5)


def memory() -> str:
    """What everything below this process holds, by whose it is."""
    everything = memory_of(os.getpid())
    servers = sum(memory_of(pid)["pss"] for pid in descendants(os.getpid()) if _is_server(pid))
    return (
        f"memory: {servers / 1e9:.2f} GB of the servers, "
        f"{(everything['pss'] - servers) / 1e9:.2f} GB of Ray and this script "
        f"(PSS, {everything['processes']} processes)"
    )


def _is_server(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"app.commands.serve_until_closed" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


if __name__ == "__main__":
    sys.exit(main())
