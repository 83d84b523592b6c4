"""The request of each method of the clients, and the parsing of its reply. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO, TextIOBase
from os import PathLike
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    Protocol,
    TypedDict,
    TypeVar,
    cast,
    runtime_checkable,
)
from urllib.parse import quote

import httpx

from paddlepool_client.results import Classification, Emotion, Model, OcrResult, Segmentation


@runtime_checkable
class BinaryFile(Protocol):
    """A file that is open for reading bytes."""

    def read(self) -> bytes: ...


@runtime_checkable
class PillowImage(Protocol):
    """The methods of a picture of Pillow (`PIL.Image.Image`) that the client uses."""

    @property
    def mode(self) -> str: ...

    def convert(self, mode: str) -> Any: ...

    def save(self, fp: Any, format: str) -> None: ...


Source = str | PathLike[str] | bytes | BinaryFile | PillowImage
"""A picture: its path, the bytes of its file (JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF; HEIC if the
server has the decoder), an open file, or a picture of Pillow."""

PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
"""Pillow's modes that a PNG file can hold."""
OTHER_MODES = {"PA": "RGBA", "RGBa": "RGBA", "La": "LA", "I": "I;16"}
"""Modes that a PNG file holds in another form. What is in neither list becomes RGB."""

PICTURE = {"content-type": "image/*"}
"""The server detects the format; the declared type only says that it is a picture."""

T = TypeVar("T")


class SegmentOptions(TypedDict, total=False):
    """The parameters of POST /segment; the server has a default for each.

    Names, types and descriptions are those of the server's OpenAPI document.
    """

    output: Annotated[
        Literal["cutout", "mask", "composite", "labels"],
        "What to make from the picture. `labels`: the class of each pixel as its grey value, from "
        "a semantic segmentation model.",
    ]
    format: Annotated[
        Literal["png", "webp", "jpg"],
        "Encoding; jpg for composite only. Left out: what Accept prefers, else png.",
    ]
    size: Annotated[
        Literal["full", "preview", "medium", "hd"],
        "Size of the result: `preview` is at most 0.25 MP, `medium` 1.5, `hd` 4.",
    ]
    bg_color: Annotated[
        str, "For composite: #rgb, #rgba, #rrggbb, #rrggbbaa or a CSS name; white if left out."
    ]
    crop: Annotated[bool, "Crop to the foreground box."]
    refine: Annotated[
        Literal["none", "guided", "matting"],
        "`guided` makes the mask follow the picture's edges; `matting` also looks for hair "
        "and fur beside them and takes up to a second more. Left out: guided for cutout, none"
        " for mask, guided for composite.",
    ]
    threshold: Annotated[float, "Makes the mask binary: opaque from this value on."]
    colours: Annotated[
        Literal["estimated", "original"],
        "`estimated` takes the old background's colour out of partial edges.",
    ]
    bg_image: Annotated[Source, "For composite: a second picture, the background."]
    bg_fit: Annotated[
        Literal["cover", "contain"],
        "How `bg_image` fills the canvas: `cover` crops it, `contain` shows all of it"
        " on `bg_color`. Left out: cover.",
    ]
    bg_blur: Annotated[
        str,
        "For composite: the picture's own background, blurred; the blur's standard deviation "
        "in percent of the longer side, 0.5% to 10%, as `2%`.",
    ]
    crop_margin: Annotated[
        str,
        "With crop: room around the subject. One, two or four values (top, right, bottom, "
        "left), each up to 500px or 50% of the subject's side, as `10%`. Left out: 0px.",
    ]
    scale: Annotated[str, "How much of the canvas the subject fills: `original`, or 10% to 100%."]
    position: Annotated[
        str,
        "Where the subject stands: `original`, `center`, or how much of the free room is left"
        " of it and above it, 0% to 100%, as `50% 100%`. Left out: center with `scale`, else "
        "original.",
    ]
    shadow: Annotated[
        Literal["none", "drop"], "`drop`: a soft shadow behind the subject. Not for mask."
    ]
    shadow_opacity: Annotated[int, "With shadow=drop: how dark it is, in percent. Left out: 50."]
    model: Annotated[
        str, "Model to use, `name` or `name@version`; the repository's default if left out."
    ]
    instance_group: Annotated[
        str,
        "Instance group to use, or `part:group,part:group` for a composed model; the model's"
        " default if left out.",
    ]
    predictor: Annotated[str, "Alias of `instance_group`."]
    timeout_ms: Annotated[int, "Deadline in milliseconds; `/info` names the default and the limit."]


class SentimentOptions(TypedDict, total=False):
    """Parameters of POST /sentiment, except those that change the form of its reply."""

    top_k: int
    model: str
    instance_group: str
    predictor: str
    timeout_ms: int


class ClassifyOptions(TypedDict, total=False):
    """Parameters of POST /classify. `top` is the number of labels, 1 to 1000."""

    top: int
    model: str
    instance_group: str
    predictor: str
    timeout_ms: int


class OcrOptions(TypedDict, total=False):
    """Parameters of POST /ocr, except those that change the form of its reply.

    Lines with a score below `min_score` (0 to 1) are left out. A page is reduced to a longest side
    of `limit` pixels before text is searched. `orientation` turns pages upright first; the model
    needs a part for that.
    """

    min_score: float
    limit: int
    orientation: bool
    model: str
    instance_group: str
    predictor: str
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """A request and the function that reads its reply. Files at paths are read when it is sent.

    The request has a `body`, or the `files` of a form with their field names, or `json`, or none of
    these. `read` gets each successful reply, and error replies with a status in `accepted`.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Path | None = None
    files: Sequence[tuple[str, bytes | Path]] = ()
    json: Any = None
    accepted: frozenset[int] = frozenset()


def segment(source: Source, options: SegmentOptions) -> Call[Segmentation]:
    params: dict[str, Any] = _known("segment", options, SegmentOptions)
    background: Source | None = params.pop("bg_image", None)
    call = partial(Call, method="POST", path="/segment", read=Segmentation.of, params=params)
    if background is not None:
        return call(files=[("file", _content(source)), ("bg_image", _content(background))])
    return call(headers=PICTURE, body=_content(source))


def classify(source: Source, options: ClassifyOptions) -> Call[Classification]:
    return Call(
        method="POST",
        path="/classify",
        read=Classification.of,
        params=_known("classify", options, ClassifyOptions),
        headers=PICTURE,
        body=_content(source),
    )


def ocr(sources: Source | Sequence[Source], options: OcrOptions) -> Call[OcrResult]:
    params = _known("ocr", options, OcrOptions)
    call = partial(Call, method="POST", path="/ocr", params=params)
    buffers = str | bytes | bytearray | memoryview  # sequences, but not of pictures
    if isinstance(sources, buffers) or not isinstance(sources, Sequence):
        read = partial(OcrResult.of, pictures=1)
        return call(read=read, headers=PICTURE, body=_content(sources))
    if not sources:
        raise TypeError("ocr() takes at least one picture, received an empty list")
    files = [("file", _content(source)) for source in cast("Sequence[Source]", sources)]
    return call(read=partial(OcrResult.of, pictures=len(files)), files=files)


def _known(method: str, options: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    """Return a copy of the options. Raises TypeError for one that `kind` does not declare."""
    for name in options:
        if name not in kind.__annotations__:
            names = ", ".join(kind.__annotations__)
            raise TypeError(f"{method}() has no option {name!r}, it has {names}")
    return dict(options)


def _content(source: Source) -> bytes | Path:
    """Return the bytes of a picture's file, or its path, which is read when sending.

    Raises TypeError if `source` is no Source.
    """
    if isinstance(source, bytes):
        return source
    if isinstance(source, str | PathLike):
        return Path(source)
    if isinstance(source, PillowImage):
        return _file(source)
    is_binary = isinstance(source, BinaryFile) and not isinstance(source, TextIOBase)
    content = source.read() if is_binary else None
    if not isinstance(content, bytes):
        kind = type(source).__name__
        raise TypeError(
            "a picture is a path, bytes, a file opened in binary mode or a picture of Pillow, "
            f"received {kind}"
        )
    return content


def _file(picture: PillowImage) -> bytes:
    """Return a file of the picture, upright as its EXIF orientation says: PNG, or TIFF for CMYK.

    A file of RGB would lose the colour profile of CMYK, which the server applies. Raises TypeError
    for a picture of floating-point numbers, whose range is not known.
    """
    from PIL import ImageOps  # Pillow is there, because the caller has one of its pictures

    if picture.mode == "F":
        raise TypeError("a picture of mode F has no known range; convert it to L, I;16 or RGB")
    upright: PillowImage = ImageOps.exif_transpose(cast("Any", picture))
    file = BytesIO()
    if upright.mode == "CMYK":
        upright.save(file, "tiff")
        return file.getvalue()
    if upright.mode not in PNG_MODES:
        if upright.mode.startswith("I;16"):  # another byte order; conversion to RGB would clip
            upright = upright.convert("I")
        upright = upright.convert(OTHER_MODES.get(upright.mode, "RGB"))
    upright.save(file, "png")
    return file.getvalue()


def sentiment(texts: Sequence[str], options: SentimentOptions) -> Call[list[list[Emotion]]]:
    parameters = _known("sentiment", options, SentimentOptions)
    if isinstance(texts, str | bytes):
        raise TypeError("sentiment() takes a list of texts, not one text")
    try:
        inputs = list(texts)
    except TypeError:
        kind = type(texts).__name__
        raise TypeError(f"sentiment() takes a list of texts, received {kind}") from None
    return Call(
        method="POST",
        path="/sentiment",
        read=partial(Emotion.lists_of, texts=len(inputs)),
        headers={"content-type": "application/json"},
        json={"inputs": inputs, "parameters": parameters},
    )


def info() -> Call[dict[str, Any]]:
    return Call(method="GET", path="/info", read=_object)


def models() -> Call[list[Model]]:
    return Call(method="GET", path="/info", read=Model.list_of)


def ready(model: str | None) -> Call[bool]:
    path, accepted = "/v2/health/ready", {503}
    if model is not None:
        name, _, version = model.partition("@")
        of_version = f"/versions/{_quoted(version)}" if version else ""
        path, accepted = f"/v2/models/{_quoted(name)}{of_version}/ready", {503, 404}
    return Call(method="GET", path=path, read=_is_ready, accepted=frozenset(accepted))


def _is_ready(response: httpx.Response) -> bool:
    """Return whether the reply says so. Another program may answer 200 to anything."""
    if not response.is_success:
        return False
    if not isinstance(ready := _object(response)["ready"], bool):
        raise TypeError(f"expected true or false, received {type(ready).__name__}")
    return ready


def _quoted(part: str) -> str:
    """Quote a path segment. A lone surrogate, which no model name contains, raises no error."""
    return quote(part, safe="", errors="surrogatepass")


def _object(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    if not isinstance(body, dict):
        raise TypeError(f"expected an object, received {type(body).__name__}")
    return body
