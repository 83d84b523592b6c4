"""OpenAPI schemas of an inference request and its reply.

`app.service.api.v2.documents` reads requests without these models, because tensors may be large.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import models_json_schema

from app.service.api.v2.documents import IGNORED, MAX_CLASSES, MAX_ID_CHARACTERS
from app.service.api.v2.tensors import BINARY_HEADER, DATATYPES

Datatype = Annotated[str, WithJsonSchema({"type": "string", "enum": list(DATATYPES)})]
Shape = list[int]
_TYPE = Field(None, description="`base64`: the strings are base64 of bytes. Others are ignored.")


class InferRequestParameters(BaseModel):
    """Parameters of a request. A task also accepts the options of its own endpoint. Unknown
    parameters are ignored and named in the reply."""

    model_config = ConfigDict(extra="allow")

    predictor: str | None = Field(None, description="The instance group to run on.")
    priority: int | None = Field(None, ge=0, le=1_000, description="0 is normal and first.")
    timeout: int | None = Field(None, ge=0, description="Microseconds; 0 is the default.")
    binary_data_output: bool | None = Field(None, description="Send all outputs raw.")
    content_type: str | None = _TYPE


class InferInputParameters(BaseModel):
    binary_data_size: int | None = Field(
        None, ge=0, description="Bytes of the raw tensor after the JSON, instead of `data`."
    )
    content_type: str | None = _TYPE


class InferInput(BaseModel):
    name: str
    datatype: Datatype
    shape: Shape
    data: list[Any] | None = Field(
        None, description="Row-major, flat or nested as deep as `shape`: numbers or strings."
    )
    parameters: InferInputParameters | None = None


class InferOutputParameters(BaseModel):
    binary_data: bool | None = Field(None, description="Send this output raw after the JSON.")
    classification: int | None = Field(
        None,
        ge=0,
        le=MAX_CLASSES,
        description="Return this many largest values as `value:index:label`.",
    )
    content_type: str | None = _TYPE


class InferRequestedOutput(BaseModel):
    name: str
    parameters: InferOutputParameters | None = None


class InferRequest(BaseModel):
    id: str | None = Field(None, max_length=MAX_ID_CHARACTERS)
    inputs: list[InferInput]
    outputs: list[InferRequestedOutput] | None = Field(None, description="All outputs if absent.")
    parameters: InferRequestParameters | None = None


class InferReplyParameters(BaseModel):
    ignored_parameters: str = Field(description="Names of the request's unknown parameters.")


class InferReplyTensorParameters(BaseModel):
    binary_data_size: int = Field(0, description="Bytes of the raw tensor after the JSON.")
    content_type: Literal["base64"] = Field("base64", description="Set for strings of binary data.")


class InferReplyTensor(BaseModel):
    name: str
    datatype: Datatype
    shape: Shape
    data: list[Any] = Field([], description="Row-major and flat; absent if the tensor is raw.")
    parameters: InferReplyTensorParameters = InferReplyTensorParameters()


class InferReply(BaseModel):
    model_name: str
    model_version: str
    id: str = Field("", description="The id of the request, if any.")
    parameters: InferReplyParameters = InferReplyParameters(**{IGNORED: ""})
    outputs: list[InferReplyTensor]


RAW = {"schema": {"type": "string", "format": "binary"}}
"""Schema of a JSON document followed by the raw tensors that it declares."""


EXAMPLE = {
    "inputs": [
        {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["今天收到了大学的录取通知书"]}
    ]
}


def described_request() -> dict[str, Any]:
    """Describe the header and the body of a request for the OpenAPI document."""
    schemas, definitions = models_json_schema([(InferRequest, "validation")])
    [reference] = schemas.values()
    content = {
        "application/json": {"schema": reference | definitions, "example": EXAMPLE},
        "application/octet-stream": RAW,
    }
    header = {
        "name": BINARY_HEADER,
        "in": "header",
        "required": False,
        "description": "Length in bytes of the JSON before raw tensors; absent in plain JSON.",
        "schema": {"type": "integer", "minimum": 0},
    }
    return {"parameters": [header], "requestBody": {"required": True, "content": content}}
