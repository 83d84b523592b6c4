"""MLServer: a custom runtime. https://docs.seldon.ai/mlserver/user-guide/custom"""

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
        mask = self.matting.write(self.matting.mask(self.matting.read(body)))
        output = Base64Codec.encode_output("mask", [mask])
        return InferenceResponse(model_name=self.name, outputs=[output])
