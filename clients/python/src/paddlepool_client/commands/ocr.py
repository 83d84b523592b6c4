"""Read the text in a picture, several, or all pictures of a directory, through a running server.

The text of one picture is printed; -o writes it to a file.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paddlepool_client import Client, OcrOptions, OcrResult
from paddlepool_client.commands.at_server import (
    ROUTING,
    add_server_options,
    key_fits,
    positive,
    routing,
)
from paddlepool_client.commands.overlay import check_shown, overlay
from paddlepool_client.commands.pictures import (
    PictureTask,
    add_pictures,
    add_target,
    run_pictures,
)

SUFFIXES = {"text": "txt", "json": "json", "overlay": "html"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_pictures(parser)
    add_target(
        parser,
        default="standard output for the text of one file, else beside each file, such as "
        "page.ocr.txt",
    )
    parser.add_argument(
        "--format",
        choices=SUFFIXES,
        default="text",
        help="text; json, with the score and the corners of each line; or overlay, an HTML page of "
        "the picture whose text can be searched and selected (default text)",
    )
    parser.add_argument(
        "--min-score", type=float, metavar="SCORE", help="leave out lines below it, 0 to 1"
    )
    parser.add_argument(
        "--limit", type=positive, metavar="PIXELS", help="longest side at which text is searched"
    )
    parser.add_argument(
        "--orientation", action="store_true", help="turn pages upright first, if the model can"
    )
    add_server_options(parser)


def run(args: argparse.Namespace, *, connect: Callable[..., Client] = Client) -> int:
    """Write the text of each picture. Returns and raises as run_pictures() does."""
    names = [name for name in OcrOptions.__annotations__ if name not in ROUTING]
    options = {name: getattr(args, name) for name in names if getattr(args, name)}
    parameters: dict[str, Any] = options | routing(args)

    def content(client: Client, picture: Path | bytes) -> bytes:
        if args.format != "overlay":
            result = client.ocr(picture, **parameters)
            return (result.text + "\n" if args.format == "text" else _json(result)).encode()
        title = picture.name if isinstance(picture, Path) else "OCR"
        picture = picture.read_bytes() if isinstance(picture, Path) else picture
        check_shown(picture)
        return overlay(picture, client.ocr(picture, **parameters).pages[0], title=title)

    task = PictureTask(
        name="ocr",
        kind="ocr",
        suffix=SUFFIXES[args.format],
        is_text=args.format != "overlay",
        options={"format": args.format, **options},
        parameters=parameters,
        content=content,
    )
    return run_pictures(args, task, connect=partial(connect, api_key=key_fits(args.api_key)))


def _json(result: OcrResult) -> str:
    pages = [
        {
            "width": page.size[0],
            "height": page.size[1],
            "angle": page.angle,
            "lines": [
                {"text": line.text, "score": line.score, "box": line.box} for line in page.lines
            ],
        }
        for page in result.pages
    ]
    return json.dumps({"pages": pages, "model": result.model}, ensure_ascii=False) + "\n"
