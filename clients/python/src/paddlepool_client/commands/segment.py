"""Cut out one picture, several, or all pictures of a directory, through a running server.

The default of --output is composite if a background is given, else cutout. The default of --format
is the suffix of PATH, else png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paddlepool_client import Client, SegmentOptions, Source
from paddlepool_client.commands.at_server import ROUTING, add_server_options, key_fits, routing
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.commands.pictures import (
    SUFFIXES,
    PictureTask,
    add_pictures,
    add_target,
    run_pictures,
)

FORMAT_OF = {".png": "png", ".webp": "webp", ".jpg": "jpg", ".jpeg": "jpg"}
BACKGROUND = ("bg_color", "bg_image", "bg_blur")


def configure(parser: argparse.ArgumentParser) -> None:
    add_pictures(parser)
    add_target(parser, default="beside each file, such as photo.cutout.png")
    add_server_options(parser)
    for name, option in get_type_hints(SegmentOptions, include_extras=True).items():
        if name not in ROUTING:
            _add_option(parser, name, option)


def _add_option(parser: argparse.ArgumentParser, name: str, option: Any) -> None:
    kind, description = get_args(option)
    more: dict[str, Any] = {}
    if kind is bool:
        more["action"] = "store_true"
    elif get_origin(kind) is Literal:
        more["choices"] = get_args(kind)
    elif kind == Source:
        more |= {"type": Path, "metavar": "FILE"}
    flag, text = f"--{name.replace('_', '-')}", description.replace("%", "%%")
    parser.add_argument(flag, help=text, **more)


def run(args: argparse.Namespace, *, connect: Callable[..., Client] = Client) -> int:
    """Write the result of each picture. Returns and raises as run_pictures() does."""
    options = _options(args)
    parameters: dict[str, Any] = options | routing(args) | _background(args)
    task = PictureTask(
        name="segment",
        kind=options["output"],
        suffix=options["format"],
        is_text=False,
        options=options,
        parameters=parameters,
        content=lambda client, picture: client.segment(picture, **parameters).content,
    )
    return run_pictures(args, task, connect=partial(connect, api_key=key_fits(args.api_key)))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that affect the result; `bg_image` is the background's path.

    Parameters that the command leaves out are missing, but not `output`, `format` and `crop`.
    Raises CommandError if `-o` names a file with the suffix of an unsupported format.
    """
    suffix = Path(args.target or "").suffix.lower()
    if suffix in SUFFIXES - FORMAT_OF.keys() and not (args.format or Path(args.target).is_dir()):
        raise CommandError(f"-o {args.target}: results are PNG, WebP or JPEG, not {suffix!r}")
    image = args.format or FORMAT_OF.get(suffix, "png")
    background = any(getattr(args, name) for name in BACKGROUND)
    output = args.output or ("composite" if background else "cutout")
    options: dict[str, Any] = {"output": output, "format": image, "crop": args.crop}
    for name in SegmentOptions.__annotations__:
        if name not in options and name not in ROUTING and (value := getattr(args, name)):
            options[name] = str(value)
    return options


def _background(args: argparse.Namespace) -> dict[str, bytes]:
    if not args.bg_image:
        return {}
    try:
        return {"bg_image": args.bg_image.read_bytes()}
    except OSError as error:
        raise CommandError(f"--bg-image {args.bg_image}: {error.strerror}") from error
