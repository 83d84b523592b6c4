"""`paddlepool segment`: every picture of a directory through a running server, resumable."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tqdm import tqdm

from app.contracts.errors import InvalidParameter
from paddlepool_client import Client, RequestFailed

SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".heic"}
)
NOTE = ".paddlepool.json"
OPTIONAL = ("bg_color", "bg_blur", "crop_margin", "scale", "position", "shadow")
MOST_JOBS = 64
INTERRUPTED = 130


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="where the pictures are, searched downwards")
    parser.add_argument("-o", "--output-directory", type=Path, required=True)
    parser.add_argument(
        "--jobs", type=_jobs, default=4, help=f"requests at once, 1 to {MOST_JOBS} (default 4)"
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--output", choices=["cutout", "mask", "composite"], default="cutout")
    parser.add_argument("--format", choices=["png", "webp", "jpg"], default="png")
    parser.add_argument("--bg-color", help="for composites, for example white or #0080ff")
    parser.add_argument("--bg-blur", help="for composites: the own background blurred, as 2%%")
    parser.add_argument("--crop", action="store_true", help="to the foreground box")
    parser.add_argument("--crop-margin", help="room around it, for example 10%% or 20px")
    parser.add_argument("--scale", help="of the subject on the canvas, for example 80%%")
    parser.add_argument("--position", help="center, or two values as '50%% 100%%'")
    parser.add_argument("--shadow", choices=["none", "drop"])


def run(args: argparse.Namespace, *, connect: Callable[..., Client] = Client) -> int:
    """Returns 0 when every picture has its result, 1 when some failed, 2 when there is nothing,
    and 130 after Ctrl-C: what had begun is finished then, and the next run does the rest."""
    pictures = _pictures(args.directory, results=args.output_directory)
    if not pictures:
        print(f"no pictures ({', '.join(sorted(SUFFIXES))}) in {args.directory}", file=sys.stderr)
        return 2
    # The whole old name is kept so that cat.jpg and cat.png do not become one result.
    results = {
        picture: args.output_directory
        / picture.relative_to(args.directory).with_name(f"{picture.name}.{args.format}")
        for picture in pictures
    }
    waiting = [picture for picture, result in results.items() if not result.exists()]
    parameters = {"output": args.output, "format": args.format, "crop": args.crop}
    for name in OPTIONAL:
        if value := getattr(args, name):
            parameters[name] = value
    _note(parameters, args.output_directory)
    done = len(pictures) - len(waiting)
    stopping = threading.Event()

    def pause(seconds: float) -> None:
        if stopping.wait(seconds):
            raise _Stopped  # trying again for a minute is not what Ctrl-C asks for

    with (
        connect(args.url, api_key=args.api_key, sleep=pause) as client,
        tqdm(total=len(pictures), initial=done, unit="picture") as bar,
    ):

        def one(picture: Path) -> None:
            result = results[picture]
            result.parent.mkdir(parents=True, exist_ok=True)
            partial = result.with_name(f".{result.name}.part")
            partial.write_bytes(client.segment(picture, **parameters).content)
            partial.replace(result)  # a result is there whole or not at all

        pool = ThreadPoolExecutor(args.jobs)
        running: dict[Future[None], Path] = {}
        try:
            for picture in waiting:
                running[pool.submit(one, picture)] = picture
            for each in as_completed(running):
                try:
                    each.result()
                except (RequestFailed, OSError) as error:
                    bar.write(f"{running[each]}: {error}", file=sys.stderr)
                bar.update()
        except KeyboardInterrupt:
            stopping.set()
            bar.write("stopping; what has begun is finished", file=sys.stderr)
        finally:
            pool.shutdown(cancel_futures=True)
    done += sum(not each.cancelled() and each.exception() is None for each in running)
    print(f"{done} of {len(pictures)} pictures in {args.output_directory}")
    if stopping.is_set():
        print("interrupted; the same command goes on with the rest", file=sys.stderr)
        return INTERRUPTED
    return 1 if done < len(pictures) else 0


def _pictures(directory: Path, *, results: Path) -> list[Path]:
    """What to cut out: everything but what lies in a directory of results further down.

    Raises InvalidParameter where the two are one: pictures and results could not be told apart.
    """
    root, output = directory.resolve(), results.resolve()
    if root == output:
        raise InvalidParameter(f"{results} holds the pictures; the results need another directory")
    skipped = output.relative_to(root) if output.is_relative_to(root) else None
    return sorted(
        path
        for path in directory.rglob("*")
        if path.suffix.lower() in SUFFIXES
        and not (skipped and path.relative_to(directory).is_relative_to(skipped))
        and path.is_file()
    )


def _note(parameters: Mapping[str, Any], directory: Path) -> None:
    """Keep what the results are made with. Raises InvalidParameter where that was something else:
    those that are there would be taken for what is asked for now."""
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
        raise InvalidParameter(
            f"{directory} has results of other options: {json.dumps(before)}, "
            f"asked for now: {json.dumps(parameters)}; take another directory, or remove that one"
        )


def _jobs(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= MOST_JOBS):
        raise argparse.ArgumentTypeError(f"must be 1 to {MOST_JOBS}, received {text!r}")
    return int(text)


class _Stopped(Exception):
    """Ends a request that would have been tried again."""
