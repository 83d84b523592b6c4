"""BentoML: a service of two workers. https://docs.bentoml.com/en/latest/build-with-bentoml"""

import os
from pathlib import Path
from typing import Annotated

import bentoml
from bentoml.validators import ContentType
from matting import Matting


@bentoml.service(workers=int(os.environ["PEER_WORKERS"]), traffic={"timeout": 60})
class Masks:
    def __init__(self) -> None:
        self.matting = Matting()

    @bentoml.api
    def mask(self, image: Path, ctx: bentoml.Context) -> Annotated[Path, ContentType("image/png")]:
        mask = self.matting.mask(self.matting.read(image.read_bytes()))
        answer = Path(ctx.temp_dir) / "mask.png"
        answer.write_bytes(self.matting.write(mask))
        return answer
