"""Cut out one picture, several, or all pictures of a directory, through a running server.

The default of --output is composite if a background is given, else cutout. The default of --format
is the suffix of PATH, else png.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paddlepool_client import Client, RequestFailed, SegmentOptions, Source
from paddlepool_client.commands.at_server import (
    ROUTING,
    add_server_options,
    key_fits,
    routing,
    server_of,
)
from paddlepool_client.commands.cut_out import cut_out, refusal
from paddlepool_client.commands.errors import INTERRUPTED, CommandError

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"}
)
TASK = "segment"
NOTE = ".paddlepool.json"
FORMAT_OF = {".png": "png", ".webp": "webp", ".jpg": "jpg", ".jpeg": "jpg"}
BACKGROUND = ("bg_color", "bg_image", "bg_blur")
OUTPUTS = ("cutout", "mask", "composite", "labels")
STANDARD = "-"
MOST_JOBS = 64


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pictures",
        nargs="+",
        metavar="PICTURE",
        help="files, a directory (searched recursively), or - for standard input",
    )
    parser.add_argument(
        "-o",
        "--output-directory",
        dest="target",
        metavar="PATH",
        help="a file, a directory, or - for standard output; default: beside each file, such as "
        "photo.cutout.png",
    )
    parser.add_argument(
        "--jobs", type=_jobs, default=4, help=f"requests at once, 1 to {MOST_JOBS} (default 4)"
    )
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
    """Run the command.

    Returns 0 if every picture has its result, 1 if some failed, 2 if there is no picture, and 130
    after Ctrl-C: requests in progress finish, and the next run continues.
    """
    options = _options(args)
    background = _background(args)
    connect = partial(connect, api_key=key_fits(args.api_key))
    parameters: dict[str, Any] = options | routing(args) | background
    if STANDARD in args.pictures:
        return _standard_input(args, parameters, connect)
    sources = [Path(picture) for picture in args.pictures]
    directories = [source for source in sources if source.is_dir()]
    if directories and len(sources) > 1:
        raise CommandError(
            f"{directories[0]} is a directory; a directory must be the only argument"
        )
    if directories:
        return _directory(args, directories[0], options, parameters, connect)
    if args.target == STANDARD:
        if len(sources) > 1:
            raise CommandError("several pictures cannot be written to standard output")
        return _one(args, sources[0], STANDARD, parameters, connect)
    results = _results(args, sources, options)
    with server_of(args, task=TASK, connect=connect) as url:
        done = cut_out(results, connect=connect, url=url, parameters=parameters, jobs=args.jobs)
    if len(results) > 1:
        print(f"{done.count} of {len(results)} pictures")
    elif done.count:
        print(*results.values())
    return INTERRUPTED if done.interrupted else int(done.count < len(results))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """The given parameters that affect the result."""
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


def _standard_input(
    args: argparse.Namespace, parameters: Mapping[str, Any], connect: Callable[..., Client]
) -> int:
    if len(args.pictures) > 1:
        raise CommandError("- is standard input and must be the only picture")
    target = args.target or STANDARD
    if target == STANDARD and sys.stdout.isatty():
        raise CommandError("a picture is not written to a terminal; use -o FILE, or redirect")
    content = sys.stdin.buffer.read()
    if not content:
        raise CommandError("standard input has 0 bytes, expected a picture")
    return _one(args, content, target, parameters, connect)


def _one(
    args: argparse.Namespace,
    source: Path | bytes,
    target: str,
    parameters: Mapping[str, Any],
    connect: Callable[..., Client],
) -> int:
    with server_of(args, task=TASK, connect=connect) as url, connect(url) as client:
        try:
            result = client.segment(source, **parameters).content
        except RequestFailed as error:
            raise CommandError(refusal(error, parameters) or str(error)) from error
    if target == STANDARD:
        sys.stdout.buffer.write(result)
        sys.stdout.buffer.flush()
        return 0
    Path(target).write_bytes(result)
    print(target)
    return 0


def _results(
    args: argparse.Namespace, sources: list[Path], options: Mapping[str, Any]
) -> dict[Path, Path]:
    """The path of each picture's result. Raises CommandError."""
    for source in sources:
        if not source.is_file():
            raise CommandError(f"{source} is neither a file nor a directory")
    image, target = options["format"], None if args.target is None else Path(args.target)
    if target is None:
        results = {path: path.with_suffix(f".{options['output']}.{image}") for path in sources}
    elif len(sources) > 1 or target.is_dir() or args.target.endswith("/"):
        results = {path: target / _named(path, image) for path in sources}
    else:
        results = {sources[0]: target}
    if len(set(results.values())) < len(sources):
        raise CommandError("two pictures have the same name, and so would their results")
    for source, result in results.items():
        if result.exists() and result.samefile(source):
            raise CommandError(f"{result} is the picture; the result must be another file")
    return results


def _named(picture: Path, image: str) -> str:
    """The name of a result. It keeps the whole name, so that cat.jpg and cat.png do not collide."""
    return picture.name if picture.suffix.lower() == f".{image}" else f"{picture.name}.{image}"


def _directory(
    args: argparse.Namespace,
    directory: Path,
    options: dict[str, Any],
    parameters: Mapping[str, Any],
    connect: Callable[..., Client],
) -> int:
    if args.target is None or args.target == STANDARD:
        raise CommandError(f"{directory} is a directory; use -o DIR for the results")
    output = Path(args.target)
    pictures = _pictures(directory, results=output)
    if not pictures:
        print(f"no pictures ({', '.join(sorted(SUFFIXES))}) in {directory}", file=sys.stderr)
        return 2
    results = {
        picture: (output / picture.relative_to(directory)).with_name(
            _named(picture, options["format"])
        )
        for picture in pictures
    }
    if len(set(results.values())) < len(pictures):
        raise CommandError("two pictures would have the same result file")
    waiting = {picture: result for picture, result in results.items() if not result.exists()}
    with server_of(args, task=TASK, connect=connect) as url:
        _note(options | {k: v for k, v in routing(args).items() if k != "timeout_ms"}, output)
        try:
            done = cut_out(
                waiting,
                connect=connect,
                url=url,
                parameters=parameters,
                jobs=args.jobs,
                before=len(pictures) - len(waiting),
            )
        except CommandError:
            if not any(result.exists() for result in results.values()):
                (output / NOTE).unlink()  # the next run may use other options
            raise
    count = len(pictures) - len(waiting) + done.count
    print(f"{count} of {len(pictures)} pictures in {output}")
    if done.interrupted:
        print("interrupted; run the same command again to continue", file=sys.stderr)
        return INTERRUPTED
    return 1 if count < len(pictures) else 0


def _pictures(directory: Path, *, results: Path) -> list[Path]:
    """The pictures of a directory, without results: those in directories of results below it, and
    those that stand beside their picture.

    Raises CommandError if both are the same directory: results would be read as pictures.
    """
    root, output = directory.resolve(), results.resolve()
    if root == output:
        raise CommandError(f"{results} contains the pictures; the results need another directory")
    skipped = {note.parent for note in directory.rglob(NOTE)} - {directory}
    if output.is_relative_to(root):
        skipped.add(directory / output.relative_to(root))
    pictures = sorted(
        path
        for path in directory.rglob("*")
        if path.suffix.lower() in SUFFIXES and skipped.isdisjoint(path.parents) and path.is_file()
    )
    names = {path.with_suffix("") for path in pictures}
    return [path for path in pictures if not _is_result(path.with_suffix(""), names)]


def _is_result(name: Path, names: Collection[Path]) -> bool:
    """Whether a file of this name, without its suffix, is a result beside one of these pictures."""
    return name.suffix[1:] in OUTPUTS and name.with_suffix("") in names


def _note(parameters: Mapping[str, Any], directory: Path) -> None:
    """Record the options of the results.

    Raises CommandError if earlier results have other options: the next run would mix them.
    """
    note = directory / NOTE
    try:
        before = json.loads(note.read_text("utf-8"))
    except FileNotFoundError:
        directory.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(parameters) + "\n", "utf-8")
        return
    except ValueError:
        before = None
    if before != parameters:
        raise CommandError(
            f"{directory} has results of other options: {json.dumps(before)}, "
            f"asked for now: {json.dumps(parameters)}; use another directory, or remove that one"
        )


def _jobs(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MOST_JOBS):
        raise argparse.ArgumentTypeError(f"must be 1 to {MOST_JOBS}, received {text!r}")
    return int(text)
