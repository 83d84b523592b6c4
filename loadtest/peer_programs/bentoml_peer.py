"""BentoML, one worker per core.

https://docs.bentoml.com/en/latest/get-started/services.html
"""

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
        file = Path(ctx.temp_dir) / "mask.png"
        file.write_bytes(self.matting.process(image.read_bytes()))
        return file
