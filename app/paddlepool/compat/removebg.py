"""`/v1.0/removebg` and `/v1.0/account`, compatible with remove.bg's API.

Fields, headers and errors follow https://www.remove.bg/api and its clients: `removebg` 0.04 of PyPI
and `remove.bg` 1.3 of npm. `translate` maps the fields to the task's request.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import unquote_plus

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.responses import JSONResponse

from paddlepool.compat import api
from paddlepool.compat.api import JSON, CompatibleApi, refused, run_segment
from paddlepool.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType
from paddlepool.service.api.errors import ErrorForm, Fault
from paddlepool.service.api.routes import RoutingDep
from paddlepool.service.api.services import ServicesDep, base64_parts, run_off_loop
from paddlepool.service.api.uploads import FORM, json_object, media_type, read_form
from paddlepool.settings.server import Settings
from paddlepool.tasks.options import Options, schemas
from paddlepool.tasks.segment.request import (
    MEDIA_TYPES,
    Colour,
    SegmentRequest,
    SegmentResult,
    read_colour,
)
from paddlepool.tasks.segment.router import read_accept, result_headers

URLENCODED = "application/x-www-form-urlencoded"
DETECTED = "other"
"""remove.bg's X-Type for a picture of no specific kind. This server detects no kinds, so its X-Type
is always this one."""
UNLIMITED_CALLS = 1_000_000
"""Free calls that /v1.0/account reports if there is no quota. The number is large because clients
check that it covers the calls they plan."""
FIELD_TEXT_BYTES = 1024
QUOTED = b"+/=\n\r,:;"
"""Characters that clients percent-encode in base64 and in a `data:` prefix."""
UNKNOWN_FOREGROUND = {
    "title": "Could not identify foreground in image",
    "code": "unknown_foreground",
    "detail": "The network found no foreground in this picture.",
}


class RemoveBgFault(BaseModel):
    title: str
    code: str
    detail: str


class RemoveBgError(BaseModel):
    """An error in remove.bg's form."""

    errors: list[RemoveBgFault]


async def account(services: ServicesDep) -> dict[str, Any]:
    """Returns zero credits, because nothing is sold, and the per-minute quota as free calls; a
    million without a quota."""
    calls = services.settings.quota_requests_per_minute or UNLIMITED_CALLS
    credits = {"total": 0, "subscription": 0, "payg": 0, "enterprise": 0}
    api = {"free_calls": calls, "sizes": "all"}
    return {"data": {"attributes": {"credits": credits, "api": api}}}


async def remove_background(
    request: Request, services: ServicesDep, routing: RoutingDep
) -> Response:
    """Accepts a form, or the same fields as JSON with the picture as base64. As at remove.bg,
    `size` is `preview` by default, and a picture without a foreground gets 400.
    """
    parse, size = await _received(request, services.settings)
    result, headers, typed = await run_segment(services, routing, parse, size)
    if result.box.width == 0:
        return JSONResponse({"errors": [UNKNOWN_FOREGROUND]}, 400, headers)
    headers |= result_headers(result) | {"X-Credits-Charged": "0"}
    if typed:
        headers["X-Type"] = DETECTED
    as_json, _ = read_accept(request.headers.get("accept", ""))
    if not as_json:
        return Response(result.image, media_type=MEDIA_TYPES[result.format], headers=headers)
    content = await run_off_loop(services, partial(_as_json, result), size=len(result.image))
    return Response(content, media_type=JSON, headers=headers)


async def _received(
    request: Request, settings: Settings
) -> tuple[Callable[[], tuple[SegmentRequest, bool]], int]:
    """Receive the body; return a function that translates it, and the number of bytes to parse.

    The function returns what translate() does. Raises UnsupportedMediaType and the errors of
    read_form() and Exchange.receive().
    """
    kind = media_type(request)
    most = max(settings.form_max_fields, MAX_FIELDS)
    if kind == FORM:
        # A field may be a picture in base64, so its limit is that of the whole body.
        cap = api.picture_bytes(settings)
        files, fields = await read_form(request, max_files=2, max_fields=most, field_bytes=cap)
        size = sum(len(value) for _, value in fields)
        return partial(translate, dict(fields), dict(files)), size
    if kind not in (JSON, URLENCODED):
        raise UnsupportedMediaType(f"the body must be {FORM}, {URLENCODED} or {JSON}")
    body = await request.body()
    parse = json_object if kind == JSON else partial(_urlencoded, most=most)
    return lambda: translate(parse(body), {}), len(body)


def _urlencoded(body: bytes, most: int) -> dict[str, Any]:
    """Parse a URL-encoded form; of fields with the same name, the last counts.

    A picture in base64 is not decoded like other text: it may be megabytes long with few encoded
    characters, and an unencoded plus sign in it is not a space. Raises InvalidParameter for more
    than `most` + 1 fields, for one that is too long, and for a picture in which other characters
    than QUOTED are encoded.
    """
    pairs = body.split(b"&", most + 1)
    if len(pairs) > most + 1:
        raise InvalidParameter(f"the form has more than {most} fields")
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        if name == b"image_file_b64":
            for character in QUOTED:
                for quoted in (b"%%%02X" % character, b"%%%02x" % character):
                    value = value.replace(quoted, bytes((character,)))
            if b"%" in value:
                why = "must be base64 without other percent-encoded characters"
                raise refused("image_file_b64", why)
            fields["image_file_b64"] = value
            continue
        if len(pair) > 3 * FIELD_TEXT_BYTES:
            raise InvalidParameter(f"a field of the form has more than {FIELD_TEXT_BYTES} bytes")
        fields[_text(name)] = _text(value)
    return fields


def _text(quoted: bytes) -> str:
    return unquote_plus(quoted.decode("latin-1"), errors="replace")


def _as_json(result: SegmentResult) -> bytes:
    box = result.box
    places = (
        f',"foreground_top":{box.top},"foreground_left":{box.left}'
        f',"foreground_width":{box.width},"foreground_height":{box.height}}}}}'
    )
    parts = [b'{"data":{"result_b64":"', *base64_parts(result.image), b'"', places.encode()]
    return b"".join(parts)


CODES = {
    "file_missing": "missing_source",
    "image_unreadable": "failed_to_read_image",
    "unsupported_media_type": "invalid_file_type",
    "unauthorized": "auth_failed",
    "overloaded": "rate_limit_exceeded",
    "quota_exceeded": "rate_limit_exceeded",
}
"""Maps this server's error codes to remove.bg's; other codes stay unchanged."""
FIELDS = (
    "image_url", "size", "format", "roi", "crop_margin", "scale", "position", "channels",
    "semitransparency", "bg_color", "bg_image_url",
)  # fmt: skip
"""Fields for which remove.bg has an error code of its own, such as `invalid_size`."""


def _write(fault: Fault, _request_id: str) -> Mapping[str, Any]:
    code = CODES.get(fault.code, fault.code)
    if code == "invalid_parameter" and fault.parameter in FIELDS:
        code = f"invalid_{fault.parameter}"
    return {"errors": [{"title": fault.title, "code": code, "detail": fault.detail}]}


Size = Literal["preview", "small", "regular", "medium", "hd", "full", "4k", "50MP", "auto"]
Kind = Literal["auto", "person", "product", "animal", "car", "transportation", "graphic", "other"]
SIZES = {"medium": "medium", "hd": "hd"} | dict.fromkeys(("preview", "small", "regular"), "preview")
"""Maps remove.bg's sizes to the task's; its other sizes mean the picture's own size, `full`."""
WHOLE = ("0% 0% 100% 100%", "0%,0%,100%,100%")
Text = Annotated[str | None, WithJsonSchema({"type": "string", "example": ""})]
"""The example makes the API page leave empty fields out."""


class Fields(Options):
    """The fields besides the pictures. Others are ignored."""

    model_config = ConfigDict(extra="ignore")
    booleans: ClassVar = {"true": True, "1": True, "false": False, "0": False}
    expected: ClassVar = SegmentRequest.expected

    image_url: Text = Field(None, description="Rejected: pictures are not fetched by URL.")
    size: Size = Field(
        "preview",
        description="preview, small, regular: 0.25 MP; medium: 1.5; hd: 4; others: the original "
        "size.",
    )
    type: Kind = Field("auto", description="Has no effect.")
    type_level: Literal["none", "1", "2", "latest"] | None = Field(
        None, description="`none` omits X-Type."
    )
    format: Literal["auto", "png", "jpg", "webp"] = Field("auto", description="zip is rejected.")
    roi: str = Field(WHOLE[0], description="Rejected, unless it is the whole picture.")
    crop: bool = Field(False, description="Crop to the foreground.")
    crop_margin: Text = Field(None, description="With crop: up to 500px or 50% per side.")
    scale: Text = Field(None, description="`original`, or 10% to 100%.")
    position: Text = Field(None, description="`original`, `center`, or two percentages.")
    channels: Literal["rgba", "alpha"] = Field("rgba", description="`alpha`: the mask alone.")
    shadow_type: Literal["none", "drop"] | None = Field(
        None, description="Other shadows are rejected."
    )
    shadow_opacity: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="With a shadow."
    )
    add_shadow: bool = Field(False, description="The same as shadow_type=drop.")
    semitransparency: bool | None = Field(None, description="Has no effect.")
    bg_color: Text = Field(None, description="Hexadecimal digits without #, or a colour's name.")
    bg_image_url: Text = Field(None, description="Rejected: pictures are not fetched by URL.")


MAX_FIELDS = 20
"""Number of fields in remove.bg's form. A client may send all of them, including empty ones."""


def _pictures(form: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[bytes, bytes | None]:
    """Return the picture and the background, which may be None.

    The picture is a file, or base64 in a field. Raises InputError if it is missing or sent twice,
    if one of the two is sent as a URL or as text of a file field, and if the background is empty.
    """
    for name in ("image_url", "bg_image_url"):
        if form.get(name):
            raise refused(name, api.NOT_FETCHED)
    for name in ("image_file", "bg_image_file"):
        if form.get(name):
            raise refused(name, f"must be a file of the form: curl -F {name}=@photo.jpg")
    file, text = files.get("image_file"), form.get("image_file_b64")
    if file and text:
        raise refused("image_file_b64", "image_file is given as well; only one picture is accepted")
    if not file and not text:
        raise FileMissing("the picture is missing: give it in image_file or image_file_b64")
    background = files.get("bg_image_file")
    if background is not None and not background:
        raise FileMissing("bg_image_file: the picture has 0 bytes")
    return file or api.picture_in_base64(text, "image_file_b64"), background


def _normalised(value: object) -> Any:
    """Return a text without blanks at its ends, a number as text, and any other value unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return value
    return value.strip() if isinstance(value, str) else f"{value:g}"


def translate(form: Mapping[str, Any], files: Mapping[str, bytes]) -> tuple[SegmentRequest, bool]:
    """Return the task's request, and whether its reply has the header X-Type.

    Ignores unknown and empty fields, and a background image that the result does not show.
    Raises InputError, whose message names the field.
    """
    body, background = _pictures(form, files)
    fields = Fields.model_validate(
        {name: _normalised(value) for name, value in form.items() if value not in (None, "")}
    )
    if fields.roi not in WHOLE:
        raise refused("roi", f"a region of interest is not supported; only {WHOLE[0]}, the whole")
    options: dict[str, Any] = {"size": SIZES.get(fields.size, "full"), "crop": fields.crop}
    options |= {name: getattr(fields, name) for name in ("scale", "position")}
    if fields.crop:  # else remove.bg ignores crop_margin, whose default is 0
        options["crop_margin"] = "0px" if fields.crop_margin == "0" else fields.crop_margin
    options |= _output(fields, background)
    if options["output"] != "composite":
        background = None
    options = {name: value for name, value in options.items() if value is not None}
    request = SegmentRequest(body=body, background=background, **options)
    return request, fields.type_level != "none"


def _output(fields: Fields, background: bytes | None) -> dict[str, Any]:
    """Return the options of SegmentRequest for the kind of result, background, shadow and format.

    Raises InvalidParameter if the fields exclude each other or the colour is invalid.
    """
    if fields.channels == "alpha":  # the mask alone
        if fields.format == "jpg":
            raise refused("format", "jpg is not supported with channels=alpha; use png")
        file_format = "png" if fields.format == "auto" else fields.format
        return {"output": "mask", "refine": "guided", "format": file_format}
    options: dict[str, Any] = {"output": "cutout" if background is None else "composite"}
    opaque = background is not None
    if fields.bg_color is not None:
        if background is not None:
            why = "bg_image_file is given as well; only one background is accepted"
            raise refused("bg_color", why)
        options = {"output": "composite", "bg_color": _colour(fields.bg_color)}
        opaque = options["bg_color"][3] == 255
    options["format"] = fields.format
    if fields.format == "auto":
        options["format"] = "jpg" if opaque else "png"
    if options["format"] == "jpg":  # it has no transparency: the default background is white
        options["output"] = "composite"
    shadow = fields.shadow_type or ("drop" if fields.add_shadow else "none")
    if shadow == "drop" and fields.shadow_opacity != 0:
        options |= {"shadow": "drop", "shadow_opacity": fields.shadow_opacity}
    return options


def _colour(text: str) -> Colour:
    """Read hexadecimal digits, with or without #, or a CSS name. Raises InvalidParameter."""
    for written in (text, f"#{text}"):
        with suppress(ValueError):
            return read_colour(written)
    raise refused("bg_color", "must be hexadecimal, as 81d4fa or 81d4fa77, or a colour's name")


FILE = {"type": "string", "format": "binary"}
SCHEMA = {
    "type": "object",
    "properties": {
        "image_file": FILE | {"description": "The picture, unless image_file_b64 is given."},
        "image_file_b64": {
            "type": "string",
            "example": "",
            "description": "The picture in base64; required in JSON.",
        },
        **schemas(Fields),
        "bg_image_file": FILE | {"description": "The background."},
    },
}

API = CompatibleApi(
    name="removebg",
    task="segment",
    path="/v1.0/removebg",
    endpoint=remove_background,
    operation="removebgRemove",
    summary="As remove.bg: remove the background of an uploaded picture",
    reply={
        "description": "The picture, or JSON when `Accept` asks for it.",
        "content": {kind: {"schema": FILE} for kind in MEDIA_TYPES.values()}
        | {JSON: {"schema": {"type": "object"}}},
    },
    body={FORM: {"schema": SCHEMA}, URLENCODED: {"schema": SCHEMA}}
    | {JSON: {"schema": SCHEMA, "example": {"image_file_b64": api.EXAMPLE}}},
    more={
        "path": "/v1.0/account",
        "endpoint": account,
        "route_class_override": APIRoute,
        "operation_id": "removebgAccount",
        "summary": "As remove.bg: remaining credits and calls",
    },
    errors=ErrorForm(
        model=RemoveBgError,
        write=_write,
        statuses={
            401: 403,
            **dict.fromkeys((413, 415, 422), 400),
            "model_not_found": 400,
            "overloaded": 429,
        },
    ),
    headers=("X-Type", "X-Credits-Charged"),
)
