"""What the Accept header of a `/segment` request asks for."""

from __future__ import annotations

import math

_FORMATS = {"image/png": "png", "image/webp": "webp", "image/jpeg": "jpg"}
_JSON = "application/json"
MAX_RANGES = 32


def read_accept(header: str) -> tuple[bool, str | None]:
    """Whether JSON is wanted, and the picture format preferred, None where it is left open.

    A range for everything (`*/*`, `image/*`) leaves the format open; q-values are honoured, and of
    equals the first wins. A header that names nothing we have is ignored, as HTTP allows.
    """
    best_format: tuple[float, str] | None = None
    json_quality = open_quality = 0.0
    for part in header.lower().split(",")[:MAX_RANGES]:
        kind, _, parameters = part.partition(";")
        kind, quality = kind.strip(), _quality(parameters)
        if kind in _FORMATS:
            if quality > (best_format[0] if best_format else 0.0):
                best_format = (quality, _FORMATS[kind])
        elif kind == _JSON:
            json_quality = max(json_quality, quality)
        elif kind in ("*/*", "image/*"):
            open_quality = max(open_quality, quality)
    picture_quality = max(best_format[0] if best_format else 0.0, open_quality)
    return (
        json_quality > 0.0 and json_quality >= picture_quality,
        best_format[1] if best_format and best_format[0] >= open_quality else None,
    )


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                return 0.0
            return quality if math.isfinite(quality) else 0.0
    return 1.0
