"""`paddlepool segment`: every picture of a directory through a running server, resumable."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import httpx
from tqdm import tqdm

from app.client import ApiError, Client

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="where the pictures are, searched downwards")
    parser.add_argument("-o", "--output-directory", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=4, help="requests at once (default 4)")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")
    parser.add_argument("--output", choices=["cutout", "mask", "composite"], default="cutout")
    parser.add_argument("--format", choices=["png", "webp", "jpg"], default="png")
    parser.add_argument("--bg-color", help="for composites, for example white or #0080ff")
    parser.add_argument("--crop", action="store_true", help="to the foreground box")


def run(args: argparse.Namespace) -> int:
    """Returns 0 when every picture has its result, 1 when some failed, 2 when there is nothing."""
    pictures = sorted(p for p in args.directory.rglob("*") if p.suffix.lower() in SUFFIXES)
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
    if args.bg_color:
        parameters["bg_color"] = args.bg_color
    failed = 0
    with Client(args.url, api_key=args.api_key) as client:

        def one(picture: Path) -> None:
            result = results[picture]
            result.parent.mkdir(parents=True, exist_ok=True)
            partial = result.with_name(f".{result.name}.part")
            partial.write_bytes(client.segment(picture, **parameters).content)
            partial.replace(result)  # a result is there whole or not at all

        with (
            ThreadPoolExecutor(args.jobs) as pool,
            tqdm(total=len(pictures), initial=len(pictures) - len(waiting), unit="picture") as bar,
        ):
            running = {pool.submit(one, picture): picture for picture in waiting}
            for done in as_completed(running):
                try:
                    done.result()
                except (ApiError, httpx.TransportError, OSError) as error:
                    failed += 1
                    bar.write(f"{running[done]}: {error or type(error).__name__}", file=sys.stderr)
                bar.update()
    print(f"{len(pictures) - failed} of {len(pictures)} pictures in {args.output_directory}")
    return 1 if failed else 0
