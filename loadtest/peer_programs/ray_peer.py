"""Ray Serve, one replica per core.

https://docs.ray.io/en/latest/serve/http-guide.html

SIGHUP deploys the application again; the file `deployed` marks the end.
"""

import os
import signal
from pathlib import Path

import ray
from matting import Matting
from ray import serve
from starlette.requests import Request
from starlette.responses import Response

WORKERS = int(os.environ["PEER_WORKERS"])


@serve.deployment(num_replicas=WORKERS, ray_actor_options={"num_cpus": 1})
class Masks:
    def __init__(self, version: int) -> None:
        self.version = version
        self.matting = Matting()

    async def __call__(self, request: Request) -> Response:
        if request.method == "GET":
            return Response("ready")
        mask = await self.matting.process_in_thread(await request.body())
        return Response(mask, media_type="image/png")


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ["PEER_PORT"])})
    version = 0
    while True:
        serve.run(Masks.bind(version))
        Path("deployed").touch()
        signal.sigwait([signal.SIGHUP])
        version += 1
