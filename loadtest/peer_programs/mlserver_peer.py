"""MLServer, one worker per core.

https://mlserver.readthedocs.io/en/latest/examples/custom
"""

from matting import Matting
from mlserver import MLModel
from mlserver.codecs import Base64Codec
from mlserver.types import InferenceRequest, InferenceResponse


class Masks(MLModel):
    async def load(self) -> bool:
        self.matting = Matting()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        [body] = self.decode(payload.inputs[0], default_codec=Base64Codec)
        output = Base64Codec.encode_output("mask", [await self.matting.process_in_thread(body)])
        return InferenceResponse(model_name=self.name, outputs=[output])
