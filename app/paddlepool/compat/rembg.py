"""`/api/remove`, compatible with rembg's server: a form with a picture in, a PNG out.

Fields and defaults follow `rembg/commands/s_command.py` and `rembg/bg.py` of rembg 2.0.86.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from paddlepool.compat.api import NOT_FETCHED, CompatibleApi, refused, run_segment, schema_of
from paddlepool.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType
from paddlepool.service.api.errors import ErrorForm, Fault
from paddlepool.service.api.routes import RoutingDep, whole_number
from paddlepool.service.api.services import ServicesDep
from paddlepool.service.api.uploads import FIELD_BYTES, FORM, media_type, read_form
from paddlepool.tasks.segment.request import Colour, SegmentRequest

TRUE = ("true", "1", "on", "yes", "t", "y")
FALSE = ("false", "0", "off", "no", "f", "n")
MATTING = {"af": (240, 255), "ab": (10, 255), "ae": (10, 999_999)}
"""Default and maximum of each parameter of rembg's alpha matting. This server refines edges in
another way, without such parameters."""


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
    form = await read_form(request, max_files=1, max_fields=most, field_bytes=FIELD_BYTES)
    if "file" in dict(form.fields):
        raise FileMissing("the form's field file holds text; curl -F file=@photo.jpg sends a file")
    pictures = dict(form.files)
    if not pictures.get("file"):
        raise FileMissing("the form has no picture in its field file: curl -F file=@photo.jpg")
    fields = {name: value for name, value in form.fields if value}
    payload = translate(pictures["file"], fields, bgc=bgc, extras=extras)
    if model := fields.get("model"):
        routing = routing.model_copy(update={"model": model})
    result, headers, _ = await run_segment(services, routing, lambda: (payload, None), 0)
    return Response(result.image, media_type="image/png", headers=headers)


def add_removal_by_address(router: APIRouter) -> None:
    router.add_api_route("/api/remove", remove_by_address, include_in_schema=False)


async def remove_by_address(
    url: Annotated[str | None, Query(description="Not fetched.")] = None,
) -> Response:
    """Reject `url`, which rembg would fetch."""
    del url
    raise InvalidParameter(
        f"url: {NOT_FETCHED}: curl -F file=@photo.jpg",
        errors=({"field": "query.url", "message": NOT_FETCHED},),
    )


def translate(
    body: bytes, fields: Mapping[str, str], *, bgc: str | None, extras: str | None
) -> SegmentRequest:
    """Translate rembg's fields. Unknown ones are ignored. Raises InvalidParameter."""
    if extras is not None and extras.strip() not in ("", "{}"):
        raise refused("extras", "session options are not supported; choose a model by name")
    if _flag(fields, "vm"):
        raise refused("vm", "ViTMatte is not supported; a=true refines edges")
    matting = _flag(fields, "a")
    for name, (default, most) in MATTING.items():
        value = _whole(fields, name, default, most)
        if matting and value != default:
            why = f"a=true has no such threshold on this server; leave it at {default}"
            raise refused(name, why)
    colour = _colour(bgc)
    background: dict[str, Any] = {"output": "cutout"}
    if _flag(fields, "om"):
        background["output"] = "mask"
    elif colour is not None:
        background = {"output": "composite", "bg_color": colour}
    return SegmentRequest(
        body=body,
        refine="guided" if matting else "none",
        colours="estimated" if _flag(fields, "dc") else "original",
        threshold=0.5 if _flag(fields, "ppm") else None,
        **background,
    )


def _flag(fields: Mapping[str, str], name: str) -> bool:
    value = fields.get(name, "false").lower()
    if value not in (*TRUE, *FALSE):
        raise refused(name, "must be true or false")
    return value in TRUE


def _whole(fields: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = whole_number(fields.get(name, str(default)), digits=6)
    if value is None or value > most:
        raise refused(name, f"must be a whole number from 0 to {most}")
    return value


def _colour(text: str | None) -> Colour | None:
    """Read `r,g,b,a`. Raises InvalidParameter."""
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    found = (whole_number(part, digits=3) for part in parts)
    levels = [level for level in found if level is not None]
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
    faults = fault.errors or ({"field": "body", "message": fault.detail},)
    return {
        "detail": [
            {"type": fault.code, "loc": each["field"].split("."), "msg": each["message"]}
            for each in faults
        ]
    }


FLAG = {"type": "boolean", "default": False}
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "file": ({"type": "string", "format": "binary"}, "The picture."),
    "model": (
        {"type": "string", "example": ""},
        "A model of this server, `name` or `name@version`.",
    ),
    "a": (FLAG, "Refine edges with a guided filter; rembg uses alpha matting."),
    **{
        name: (
            {"type": "integer", "minimum": 0, "maximum": most, "default": default},
            "With a=true only the default is accepted.",
        )
        for name, (default, most) in MATTING.items()
    },
    "om": (FLAG, "Only the mask."),
    "ppm": (FLAG, "A mask of black and white only: threshold 0.5, without rembg's smoothing."),
    "dc": (FLAG, "Remove the old background's colour from edges."),
    "vm": (FLAG, "Rejected if true: ViTMatte is not supported."),
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
        "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}},
    },
    body={FORM: {"schema": schema_of(FIELDS, "file")}},
    more=add_removal_by_address,
    errors=ErrorForm(model=RembgError, write=_write, statuses={415: 422, "model_not_found": 422}),
)
