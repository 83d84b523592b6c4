"""remove.bg's fields as options of the task: each works, or is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.contracts.errors import FileMissing, InvalidParameter
from app.doors.bodies import NOT_FETCHED, picture_in_base64, refused
from app.pipelines.segment.colours import read_colour
from app.pipelines.segment.request import SegmentRequest, read_options

SIZES = {
    "preview": "preview",
    "small": "preview",
    "regular": "preview",
    "medium": "medium",
    "hd": "hd",
    "full": "full",
    "4k": "full",
    "50MP": "full",
    "auto": "full",
}
TYPES = ("auto", "person", "product", "animal", "car", "transportation", "graphic", "other")
LEVELS = ("none", "1", "2", "latest")
FORMATS = ("auto", "png", "jpg", "webp")
CHANNELS = ("rgba", "alpha")
SHADOWS = {"none": "none", "drop": "drop"}
BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
WHOLE = ("0% 0% 100% 100%", "0%,0%,100%,100%")
WORD_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """The picture: a file of the form, or base64 that is still to be read; and the background."""

    file: bytes | None
    base64: object
    background: bytes | None

    @property
    def size(self) -> int:
        return len(self.base64) if isinstance(self.base64, str | bytes) else 0


def read_source(
    fields: Mapping[str, Any], files: Mapping[str, bytes]
) -> tuple[Source, dict[str, str]]:
    """The picture's source and every other field that is filled in, as text.

    Raises FileMissing and InvalidParameter.
    """
    for name in ("image_url", "bg_image_url"):
        if fields.get(name):
            raise refused(name, NOT_FETCHED)
    for name in ("image_file", "bg_image_file"):
        if fields.get(name):
            raise refused(name, f"must be a file of the form: curl -F {name}=@photo.jpg")
    file, text = files.get("image_file"), fields.get("image_file_b64")
    if file and text:
        raise refused("image_file_b64", "image_file is there as well; one picture is expected")
    if not file and not text:
        raise FileMissing("the picture is missing: give it in image_file or image_file_b64")
    background = files.get("bg_image_file")
    if background is not None and not background:
        raise FileMissing("bg_image_file: the picture has 0 bytes", received=0)
    words = {
        name: _word(value)
        for name, value in fields.items()
        if name != "image_file_b64" and value not in (None, "")
    }
    return Source(file or None, text, background), words


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"{value:g}"
    if not isinstance(value, str):
        raise InvalidParameter("a field is neither a text nor a number")
    if len(value) > WORD_CHARACTERS:
        raise InvalidParameter(
            f"a field has more than {WORD_CHARACTERS} characters", limit=WORD_CHARACTERS
        )
    return value.strip()


def translate(source: Source, fields: Mapping[str, str]) -> SegmentRequest:
    """The task's request. Raises FileMissing and InvalidParameter by the field's name.

    Fields that are not in remove.bg's documentation are ignored, as they are there.
    """
    body = source.file or picture_in_base64(source.base64, "image_file_b64")
    _one_of(fields, "type", TYPES)  # a hint; every picture is taken as it is
    _one_of(fields, "type_level", LEVELS)
    _flag(fields, "semitransparency")  # windows of cars are as the network sees them, either way
    if fields.get("roi", WHOLE[0]) not in WHOLE:
        raise refused("roi", f"a region of interest is not offered; only {WHOLE[0]}, the whole")
    size = fields.get("size", "preview")
    if size not in SIZES:
        raise refused("size", f"must be one of {', '.join(SIZES)}")
    options = {"size": SIZES[size], "crop": "true" if _flag(fields, "crop") else "false"}
    options |= {name: fields[name] for name in ("scale", "position") if name in fields}
    if "crop_margin" in fields and options["crop"] == "true":  # else it has no effect there
        margin = fields["crop_margin"]
        options["crop_margin"] = "0px" if margin == "0" else margin  # its default, without a unit
    if _one_of(fields, "channels", CHANNELS) == "alpha":
        options |= _alpha(fields)
    else:
        options |= _coloured(fields, source) | _shadow(fields)
    background = source.background if options["output"] == "composite" else None
    return read_options(body, options, background=background)


def _alpha(fields: Mapping[str, str]) -> dict[str, str]:
    """The mask alone; backgrounds and shadows have no effect on it."""
    file_format = _format(fields)
    if file_format == "jpg":
        raise refused("format", "jpg is not offered with channels=alpha; use png")
    picked = {} if file_format == "auto" else {"format": file_format}
    return {"output": "mask", "refine": "guided"} | picked


def _coloured(fields: Mapping[str, str], source: Source) -> dict[str, str]:
    colour = fields.get("bg_color")
    if colour is not None and source.background is not None:
        raise refused("bg_color", "bg_image_file is there as well; one background is expected")
    options = {"output": "cutout"}
    opaque = source.background is not None
    if colour is not None:
        written, opaque = _colour(colour)
        options = {"output": "composite", "bg_color": written}
    elif source.background is not None:
        options = {"output": "composite"}
    file_format = _format(fields)
    if file_format == "auto":
        file_format = "jpg" if opaque else "png"
    if file_format == "jpg":  # which has no transparency: white, where no background is given
        options["output"] = "composite"
    return options | {"format": file_format}


def _colour(text: str) -> tuple[str, bool]:
    """The colour as the task reads it, and whether it is opaque. Digits may lack the #."""
    for written in (text, f"#{text}"):
        if (colour := read_colour(written)) is not None:
            return written, colour[3] == 255
    raise refused("bg_color", "must be hexadecimal, as 81d4fa or 81d4fa77, or a colour's name")


def _shadow(fields: Mapping[str, str]) -> dict[str, str]:
    kind = fields.get("shadow_type", "drop" if _flag(fields, "add_shadow") else "none")
    if kind not in SHADOWS:
        raise refused("shadow_type", f"must be one of {', '.join(SHADOWS)}; others are not offered")
    opacity = fields.get("shadow_opacity")
    if kind == "none" or opacity == "0":
        return {}
    return {"shadow": "drop"} | ({} if opacity is None else {"shadow_opacity": opacity})


def _format(fields: Mapping[str, str]) -> str:
    if fields.get("format") == "zip":
        raise refused("format", "zip is not offered; use png, jpg or webp")
    return _one_of(fields, "format", FORMATS)


def _one_of(fields: Mapping[str, str], name: str, accepted: tuple[str, ...]) -> str:
    value = fields.get(name, accepted[0])
    if value not in accepted:
        raise refused(name, f"must be one of {', '.join(accepted)}")
    return value


def _flag(fields: Mapping[str, str], name: str) -> bool:
    value = BOOLEANS.get(fields.get(name, "false").lower())
    if value is None:
        raise refused(name, "must be true or false")
    return value


def document() -> dict[str, Any]:
    """The fields as OpenAPI shows them."""
    text, file = {"type": "string"}, {"type": "string", "format": "binary"}
    flag = {"type": "boolean", "default": False}
    fields: dict[str, tuple[dict[str, Any], str]] = {
        "image_file": (file, "The picture; or image_file_b64."),
        "image_file_b64": (text, "The picture as base64; in JSON, the only way."),
        "image_url": (text, "Refused: pictures are not fetched by address."),
        "size": (
            {"enum": list(SIZES), "default": "preview"},
            "preview, small, regular: 0.25 MP; medium: 1.5; hd: 4; others: as the picture is.",
        ),
        "type": ({"enum": list(TYPES), "default": "auto"}, "Has no effect."),
        "type_level": ({"enum": list(LEVELS)}, "`none` leaves X-Type out."),
        "format": ({"enum": list(FORMATS), "default": "auto"}, "zip is refused."),
        "roi": ({"type": "string", "default": WHOLE[0]}, "Refused, unless it is the whole."),
        "crop": (flag, "Crop to the foreground."),
        "crop_margin": (text, "With crop: up to 500px or 50 % a side."),
        "scale": (text, "`original`, or 10% to 100%."),
        "position": (text, "`original`, `center`, or two percentages."),
        "channels": ({"enum": list(CHANNELS), "default": "rgba"}, "`alpha`: the mask alone."),
        "shadow_type": ({"enum": list(SHADOWS)}, "Other shadows are refused."),
        "shadow_opacity": ({"type": "integer", "minimum": 0, "maximum": 100}, "With a shadow."),
        "add_shadow": (flag, "The same as shadow_type=drop."),
        "semitransparency": ({"type": "boolean"}, "Has no effect."),
        "bg_color": (text, "Hexadecimal digits without #, or a colour's name."),
        "bg_image_url": (text, "Refused: pictures are not fetched by address."),
        "bg_image_file": (file, "The background."),
    }
    schema = {
        "type": "object",
        "properties": {name: kind | {"description": told} for name, (kind, told) in fields.items()},
    }
    kinds = ("multipart/form-data", "application/x-www-form-urlencoded", "application/json")
    return {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}
