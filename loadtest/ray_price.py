"""What the way through Ray Serve costs one replica, beside the bare server, asked in turns.

    make .venv-ray/.installed
    .venv/bin/python loadtest/ray_price.py [--pairs 60]

Two servers run, one of them under Ray, first behind Ray's own proxy and then behind its HAProxy.
The texts are classified and the picture is cut out. Bodies of 1 MB and 10 MB are read to their end
and refused, because they are no pictures: what differs then is the way alone. Also printed is the
memory of both.
"""

from __future__ import annotations

import argparse
import sys
import time

import orjson
from cases import picture
from harness import memory_of, request, running_server
from replicas import added
from under_ray import INGRESSES, ray_up

ENVIRONMENT = {
    "PADDLEPOOL_CODEC_PROCESSES": "1",
    "PADDLEPOOL_PROVE_GROUPS": "off",
    "PADDLEPOOL_STATE_FILE": "off",
}
SETTLED_SECONDS = 5.0
"""HAProxy is started anew when there is a replica, and its connections are closed."""

TEXT = orjson.dumps(
    {"inputs": "今天天气真好，我们一起去公园玩吧", "parameters": {"predictor": "onednn"}}
)


def no_picture(size: int) -> bytes:
    return request("POST", "/segment", b"\x00" * size, content_type="image/jpeg")


CASES = {
    "0.1 kB, a text": (
        request("POST", "/sentiment", TEXT, content_type="application/json"),
        200,
    ),
    "1 MB": (no_picture(1_000_000), 415),
    "10 MB": (no_picture(10_000_000), 415),
    "mask of 1 MP": (
        request(
            "POST", "/segment?output=mask&predictor=onednn", picture(), content_type="image/jpeg"
        ),
        200,
    ),
}


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--pairs", type=int, default=60, help="of each request")
    arguments.add_argument("--ingress", choices=INGRESSES, help="only this one")
    given = arguments.parse_args()
    with running_server(environment=ENVIRONMENT) as bare:
        for name, switches in INGRESSES.items():
            if given.ingress in (None, name):
                with ray_up("--cpus", "1", environment={**ENVIRONMENT, **switches}) as (port, ray):
                    time.sleep(SETTLED_SECONDS)
                    print(f"through Ray's {name}:")
                    for case, (asked, status) in CASES.items():
                        figures = added(asked, bare.port, port, pairs=given.pairs, status=status)
                        print(f"  {case}: {figures}")
                    both, alone = memory_of(ray.pid)["pss"], bare.memory()["pss"]
                    print(f"  memory: {both / 1e9:.2f} GB with Ray, {alone / 1e9:.2f} GB bare")
    return 0


if __name__ == "__main__":
    sys.exit(main())
