"""Commands that make one file of each picture: of files, a directory, or standard input."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paddlepool_client import Client, RequestFailed
from paddlepool_client.commands.at_server import routing, server_of
from paddlepool_client.commands.errors import INTERRUPTED, CommandError
from paddlepool_client.commands.sending import refusal, send

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"}
)
NOTE = ".paddlepool.json"
OUTPUTS = ("cutout", "mask", "composite", "labels")
"""Kinds of results that are pictures, as `/segment` names them."""
STANDARD = "-"
MOST_JOBS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTask:
    """What a command makes of each picture.

    `name` is the server's task. A result beside its picture is named `photo.KIND.SUFFIX`, with
    `kind` and `suffix`. Without `-o`, the result of a single picture goes to standard output if
    `is_text`. `options` are what the result depends on, except model and group; `parameters` are
    those of the request. `content` sends a picture and returns the bytes of its result's file.
    """

    name: str
    kind: str
    suffix: str
    is_text: bool
    options: Mapping[str, Any]
    parameters: Mapping[str, Any]
    content: Callable[[Client, Path | bytes], bytes]


def add_pictures(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pictures",
        nargs="+",
        metavar="PICTURE",
        help="files, a directory (searched recursively), or - for standard input",
    )
    parser.add_argument(
        "--jobs", type=_jobs, default=4, help=f"requests at once, 1 to {MOST_JOBS} (default 4)"
    )


def add_target(parser: argparse.ArgumentParser, *, default: str) -> None:
    parser.add_argument(
        "-o",
        "--output-directory",
        dest="target",
        metavar="PATH",
        help=f"a file, a directory, or - for standard output; default: {default}",
    )


def run_pictures(
    args: argparse.Namespace, task: PictureTask, *, connect: Callable[..., Client]
) -> int:
    """Write a result for each of the command's pictures.

    Returns 0 if every picture has its result, 1 if some failed, 2 if a directory has no picture,
    and 130 after Ctrl-C, when the requests in progress have finished. For a directory, the next run
    continues with the pictures without a result. Raises CommandError for wrong options, and if the
    server is gone or would reject every picture.
    """
    if STANDARD in args.pictures:
        return _standard_input(args, task, connect)
    sources, directory = sources_of(args)
    if directory:
        return _directory(args, directory, task, connect)
    if args.target == STANDARD or (args.target is None and task.is_text and len(sources) == 1):
        if len(sources) > 1:
            raise CommandError("several pictures cannot be written to standard output")
        return _one(args, sources[0], STANDARD, task, connect)
    results = _results(args, sources, task)
    with server_of(args, task=task.name, connect=connect) as url:
        done = send(
            results,
            _writer(task, results),
            connect=connect,
            url=url,
            parameters=task.parameters,
            jobs=args.jobs,
        )
    if len(results) > 1:
        print(f"{done.count} of {len(results)} pictures")
    elif done.count:
        print(*results.values())
    return INTERRUPTED if done.interrupted else int(done.count < len(results))


def sources_of(args: argparse.Namespace) -> tuple[list[Path], Path | None]:
    """Return the command's files and None, or if its argument is a directory, [] and the directory.

    Raises CommandError if one does not exist, or if a directory is not the only argument.
    """
    sources = [Path(picture) for picture in args.pictures]
    directories = [source for source in sources if source.is_dir()]
    if directories and len(sources) > 1:
        raise CommandError(
            f"{directories[0]} is a directory; a directory must be the only argument"
        )
    for source in sources:
        if not (directories or source.is_file()):
            raise CommandError(f"{source} is neither a file nor a directory")
    return ([], directories[0]) if directories else (sources, None)


def standard_input(args: argparse.Namespace) -> bytes:
    """Return the picture on standard input.

    Raises CommandError if it is empty, or if the command names another picture.
    """
    if len(args.pictures) > 1:
        raise CommandError("- is standard input and must be the only picture")
    content = sys.stdin.buffer.read()
    if not content:
        raise CommandError("standard input has 0 bytes, expected a picture")
    return content


def pictures_of(directory: Path, *, results: Path | None = None) -> list[Path]:
    """Return the pictures in and below a directory, without the results of earlier runs.

    Results lie below a directory that has a file NOTE, or beside their picture. Files below
    `results`, the directory for new results, are left out, too. If there are no pictures, standard
    error says so. Raises CommandError if `results` is the same directory: results would be read as
    pictures.
    """
    root = directory.resolve()
    output = root.parent if results is None else results.resolve()
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
    pictures = [path for path in pictures if not _is_result(path.with_suffix(""), names)]
    if not pictures:
        print(f"no pictures ({', '.join(sorted(SUFFIXES))}) in {directory}", file=sys.stderr)
    return pictures


def recorded(options: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return what results depend on: `options`, and the model and the group of `args`."""
    return {**options, **{k: v for k, v in routing(args).items() if k != "timeout_ms"}}


def _writer(task: PictureTask, results: Mapping[Path, Path]) -> Callable[[Client, Path], None]:
    """Return the function that writes the result of a picture, completely or not at all."""

    def write(client: Client, picture: Path) -> None:
        content, result = task.content(client, picture), results[picture]
        result.parent.mkdir(parents=True, exist_ok=True)
        partial = result.with_name(f".{result.name}.part")
        partial.write_bytes(content)
        partial.replace(result)

    return write


def _standard_input(
    args: argparse.Namespace, task: PictureTask, connect: Callable[..., Client]
) -> int:
    target = args.target or STANDARD
    if target == STANDARD and not task.is_text and sys.stdout.isatty():
        raise CommandError("a picture is not written to a terminal; use -o FILE, or redirect")
    return _one(args, standard_input(args), target, task, connect)


def _one(
    args: argparse.Namespace,
    source: Path | bytes,
    target: str,
    task: PictureTask,
    connect: Callable[..., Client],
) -> int:
    with server_of(args, task=task.name, connect=connect) as url, connect(url) as client:
        try:
            result = task.content(client, source)
        except RequestFailed as error:
            raise CommandError(refusal(error, task.parameters) or str(error)) from error
    if target == STANDARD:
        sys.stdout.buffer.write(result)
        sys.stdout.buffer.flush()
        return 0
    Path(target).write_bytes(result)
    print(target)
    return 0


def _results(args: argparse.Namespace, sources: list[Path], task: PictureTask) -> dict[Path, Path]:
    """Return the path of each picture's result.

    Raises CommandError if two results have the same path, or if one has that of its picture.
    """
    target = None if args.target is None else Path(args.target)
    if target is None:
        results = {path: path.with_suffix(f".{task.kind}.{task.suffix}") for path in sources}
    elif len(sources) > 1 or target.is_dir() or args.target.endswith("/"):
        results = {path: target / _named(path, task.suffix) for path in sources}
    else:
        results = {sources[0]: target}
    if len(set(results.values())) < len(sources):
        raise CommandError("two pictures have the same name, and so would their results")
    for source, result in results.items():
        if result.exists() and result.samefile(source):
            raise CommandError(f"{result} is the picture; the result must be another file")
    return results


def _named(picture: Path, suffix: str) -> str:
    """Return a result's name: the picture's, and the suffix if the picture has another one.

    The picture's own suffix stays, so that cat.jpg and cat.png do not collide.
    """
    return picture.name if picture.suffix.lower() == f".{suffix}" else f"{picture.name}.{suffix}"


def _directory(
    args: argparse.Namespace,
    directory: Path,
    task: PictureTask,
    connect: Callable[..., Client],
) -> int:
    if args.target is None or args.target == STANDARD:
        raise CommandError(f"{directory} is a directory; use -o DIR for the results")
    output = Path(args.target)
    if not (pictures := pictures_of(directory, results=output)):
        return 2
    results = {
        picture: (output / picture.relative_to(directory)).with_name(_named(picture, task.suffix))
        for picture in pictures
    }
    if len(set(results.values())) < len(pictures):
        raise CommandError("two pictures would have the same result file")
    waiting = {picture: result for picture, result in results.items() if not result.exists()}
    with server_of(args, task=task.name, connect=connect) as url:
        _note(recorded(task.options, args), output)
        try:
            done = send(
                waiting,
                _writer(task, waiting),
                connect=connect,
                url=url,
                parameters=task.parameters,
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


def _is_result(name: Path, names: Collection[Path]) -> bool:
    """Return whether a file of this name, without its suffix, is a result beside one of `names`."""
    return name.suffix[1:] in OUTPUTS and name.with_suffix("") in names


def _note(parameters: Mapping[str, Any], directory: Path) -> None:
    """Record, in the directory of the results, the `parameters` on which they depend.

    Makes the directory if necessary. Raises CommandError if earlier results depend on others: the
    directory would mix them.
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
