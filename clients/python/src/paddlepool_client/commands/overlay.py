"""An HTML page of a picture whose text can be searched, selected and copied."""

from __future__ import annotations

import base64
import html
import math

from paddlepool_client import OcrLine, OcrPage
from paddlepool_client.commands.errors import CommandError

SHOWN = (
    (0, b"\xff\xd8\xff", "jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"GIF8", "gif"),
    (0, b"BM", "bmp"),
    (8, b"WEBP", "webp"),
    (4, b"ftypavif", "avif"),
)
"""Formats that browsers show: an offset in the file, the bytes there, and the media subtype."""

TURNS = {
    0: "",
    90: "matrix(0 -1 1 0 0 {height})",
    180: "matrix(-1 0 0 -1 {width} {height})",
    270: "matrix(0 1 -1 0 {width} 0)",
}
"""SVG transforms that turn a picture anticlockwise into a page of `width` x `height`, by angle."""

UPRIGHT = 1.5
"""A box at least this many times as high as wide has vertical text, as for PaddleOCR."""

DESCENT = 0.2
"""Share of a line below its baseline, roughly."""

STYLE = """\
body { margin: 0; background: #fff; }
svg { display: block; max-width: 100%; height: auto; margin: auto; }
text { fill: transparent; font-family: sans-serif; white-space: pre; cursor: text; }
text::selection { background: rgb(11 92 173 / .35); }"""


def check_shown(picture: bytes) -> None:
    """Raise CommandError unless browsers show the picture."""
    _media_type(picture)


def overlay(picture: bytes, page: OcrPage, *, title: str) -> bytes:
    """Return an HTML page of a picture and its text. Raises CommandError as check_shown() does."""
    width, height = page.size
    sides = (height, width) if page.angle % 180 else (width, height)
    turn = TURNS[page.angle].format(width=width, height=height)
    data = base64.b64encode(picture).decode()
    texts = "\n".join(_text(line) for line in page.lines if line.text)
    return f"""\
<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(_encodable(title))}</title>
<style>
{STYLE}
</style>
</head>
<body>
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" \
viewBox="0 0 {width} {height}">
<image width="{sides[0]}" height="{sides[1]}" transform="{turn}" preserveAspectRatio="none" \
href="data:image/{_media_type(picture)};base64,{data}"/>
{texts}
</svg>
</body>
</html>
""".encode()


def _text(line: OcrLine) -> str:
    """Return the SVG element of a line, as long and as high as its box; vertical text is turned."""
    top_left, top_right, _, bottom_left = line.box
    length, size = math.dist(top_left, top_right), math.dist(top_left, bottom_left)
    start, first, last = bottom_left, top_left, top_right
    if size >= UPRIGHT * length:
        length, size = size, length
        start, last = top_left, bottom_left
    angle = math.degrees(math.atan2(last[1] - first[1], last[0] - first[0]))
    return (
        f'<text transform="translate({start[0]} {start[1]}) rotate({angle:.2f})" '
        f'y="{-DESCENT * size:.1f}" font-size="{size:.1f}" textLength="{length:.1f}" '
        f'lengthAdjust="spacingAndGlyphs">{html.escape(line.text)}</text>'
    )


def _media_type(picture: bytes) -> str:
    for start, magic, kind in SHOWN:
        if picture.startswith(magic, start):
            return kind
    kinds = ", ".join(kind for _, _, kind in SHOWN)
    raise CommandError(f"browsers do not show this format, only {kinds}; use --format json")


def _encodable(text: str) -> str:
    """Return the text with `?` for lone surrogates, which a file name may have."""
    return text.encode("utf-8", "replace").decode()
