"""`/api/remove`, compatible with rembg's server: a form with a picture in, a PNG out.

Fields and defaults follow `rembg/commands/s_command.py` and `rembg/bg.py` of rembg 2.0.86.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from fastapi import Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from paddlepool.compat.api import NOT_FETCHED, CompatibleApi, refused, run_segment
from paddlepool.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType
from paddlepool.service.api.errors import ErrorForm, Fault
from paddlepool.service.api.routes import ROUTING, RoutingDep, whole_number
from paddlepool.service.api.services import ServicesDep
from paddlepool.service.api.uploads import FIELD_BYTES, FORM, media_type, read_form
from paddlepool.tasks.options import Options, schemas
from paddlepool.tasks.segment.request import Colour, SegmentRequest

TRUE = ("true", "1", "on", "yes", "t", "y")
FALSE = ("false", "0", "off", "no", "f", "n")
Octet = Annotated[int, Field(ge=0, le=255)]
UNUSED = "With a=true only the default is accepted."


class Fields(Options):
    """rembg's fields besides the picture; others are ignored.

    `af`, `ab` and `ae` belong to rembg's alpha matting. This server refines edges in another way,
    without such parameters.
    """

    model_config = ConfigDict(extra="ignore")
    booleans: ClassVar = dict.fromkeys(TRUE, True) | dict.fromkeys(FALSE, False)

    model: str | None = Field(
        None,
        description="A model of this server, `name` or `name@version`.",
        json_schema_extra={"example": ""},
    )
    a: bool = Field(
        False, description="Refine edges with a guided filter; rembg uses alpha matting."
    )
    af: Octet = Field(240, description=UNUSED)
    ab: Octet = Field(10, description=UNUSED)
    ae: Annotated[int, Field(ge=0, le=999_999)] = Field(10, description=UNUSED)
    om: bool = Field(False, description="Only the mask.")
    ppm: bool = Field(
        False,
        description="A mask of black and white only: threshold 0.5, without rembg's smoothing.",
    )
    dc: bool = Field(False, description="Remove the old background's colour from edges.")
    vm: bool = Field(False, description="Rejected if true: ViTMatte is not supported.")


class RembgFault(BaseModel):
    """One wrong field, in FastAPI's form."""

    type: str
    loc: list[str]
    msg: str


class RembgError(BaseModel):
    """An error in the form of rembg's server, which is a FastAPI application."""

    detail: str | list[RembgFault] = Field(description="A list for an invalid request (422).")


async def remove(
    request: Request,
    services: ServicesDep,
    bgc: Annotated[str | None, Query(description="Background: `r,g,b,a`, 0 to 255.")] = None,
    extras: Annotated[str | None, Query(description="Rejected, unless `{}`.")] = None,
    *,
    routing: RoutingDep,
) -> Response:
    """The defaults are rembg's: the network's unchanged mask, and the picture's original colours.
    `a=true` refines edges; `dc=true` removes the old background's colour from them.
    """
    settings = services.settings
    if media_type(request) != FORM:
        raise UnsupportedMediaType("send the picture in a form: curl -F file=@photo.jpg")
    most = settings.form_max_fields
    files, texts = await read_form(request, max_files=1, max_fields=most, field_bytes=FIELD_BYTES)
    if "file" in dict(texts):
        raise FileMissing("the form's field file holds text; curl -F file=@photo.jpg sends a file")
    pictures = dict(files)
    if not pictures.get("file"):
        raise FileMissing("the form has no picture in its field file: curl -F file=@photo.jpg")
    fields = Fields.model_validate({name: value for name, value in texts if value})
    payload = translate(pictures["file"], fields, bgc=bgc, extras=extras)
    if fields.model:
        routing = routing.model_copy(update={"model": fields.model})
    result, headers, _ = await run_segment(services, routing, lambda: (payload, None), 0)
    return Response(result.image, media_type="image/png", headers=headers)


async def remove_by_address(
    url: Annotated[str | None, Query(description="Not fetched.")] = None,
) -> Response:
    """Reject every request with InvalidParameter; rembg would fetch `url`."""
    del url
    raise InvalidParameter(
        f"url: {NOT_FETCHED}: curl -F file=@photo.jpg",
        errors=({"field": "query.url", "message": NOT_FETCHED},),
    )


def translate(
    body: bytes, fields: Fields, *, bgc: str | None, extras: str | None
) -> SegmentRequest:
    """Return the task's request for a picture and rembg's fields.

    Raises InvalidParameter for a value that this server does not support.
    """
    if extras is not None and extras.strip() not in ("", "{}"):
        raise refused("extras", "session options are not supported; choose a model by name")
    if fields.vm:
        raise refused("vm", "ViTMatte is not supported; a=true refines edges")
    for name in ("af", "ab", "ae"):
        default = Fields.model_fields[name].default
        if fields.a and getattr(fields, name) != default:
            why = f"a=true has no such threshold on this server; leave it at {default}"
            raise refused(name, why)
    colour = _colour(bgc)
    background: dict[str, Any] = {"output": "mask" if fields.om else "cutout"}
    if colour is not None and not fields.om:
        background = {"output": "composite", "bg_color": colour}
    return SegmentRequest(
        body=body,
        refine="guided" if fields.a else "none",
        colours="estimated" if fields.dc else "original",
        threshold=0.5 if fields.ppm else None,
        **background,
    )


def _colour(text: str | None) -> Colour | None:
    """Read `r,g,b,a`, each 0 to 255; None for an empty text or None. Raises InvalidParameter."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    numbers = (whole_number(part, digits=3) for part in parts)
    levels = [level for level in numbers if level is not None]
    if len(parts) != 4 or len(levels) != 4 or max(levels) > 255:
        raise InvalidParameter(
            "bgc must be four whole numbers from 0 to 255: r,g,b,a",
            errors=({"field": "query.bgc", "message": "must be r,g,b,a, each from 0 to 255"},),
        )
    red, green, blue, alpha = levels
    return red, green, blue, alpha


def _write(fault: Fault, _request_id: str) -> Mapping[str, Any]:
    if fault.status != 422:
        return {"detail": fault.detail}
    if fault.parameter in Fields.model_fields:
        place = f"body.{fault.parameter}"
    elif fault.parameter in ROUTING:
        place = f"query.{fault.parameter}"
    else:
        place = "body"
    errors = fault.errors or ({"field": place, "message": fault.detail},)
    return {
        "detail": [
            {"type": fault.code, "loc": error["field"].split("."), "msg": error["message"]}
            for error in errors
        ]
    }


FILE = {"type": "string", "format": "binary"}
SCHEMA = {
    "type": "object",
    "properties": {"file": FILE | {"description": "The picture."}, **schemas(Fields)},
    "required": ["file"],
}

API = CompatibleApi(
    name="rembg",
    task="segment",
    path="/api/remove",
    endpoint=remove,
    operation="rembgRemove",
    summary="As rembg: remove the background of an uploaded picture",
    reply={
        "description": "The cut-out, or the mask.",
        "content": {"image/png": {"schema": FILE}},
    },
    body={FORM: {"schema": SCHEMA}},
    more={"path": "/api/remove", "endpoint": remove_by_address, "include_in_schema": False},
    errors=ErrorForm(model=RembgError, write=_write, statuses={415: 422, "model_not_found": 422}),
)
