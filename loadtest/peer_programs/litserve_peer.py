"""LitServe, one worker per core.

https://lightning.ai/docs/litserve/api-reference/litapi
"""

import os

import litserve as ls
from fastapi import Request, Response
from matting import Matting


class Masks(ls.LitAPI):
    def setup(self, device):  # noqa: ARG002 - LitServe passes it
        self.matting = Matting()

    def decode_request(self, request: Request):
        return self.matting.read(request["image"].file.read())

    def predict(self, pixels):
        return self.matting.mask(pixels)

    def encode_response(self, mask):
        return Response(self.matting.write(mask), media_type="image/png")


if __name__ == "__main__":
    server = ls.LitServer(
        Masks(),
        accelerator="cpu",
        workers_per_device=int(os.environ["PEER_WORKERS"]),
        restart_workers=True,
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PEER_PORT"]),
        generate_client_file=False,
        log_level="warning",
    )
