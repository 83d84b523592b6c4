"""Name what a picture shows, or every picture of a directory, through a running server."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from paddlepool_client import Classification, Client, InvalidRequest, RequestFailed
from paddlepool_client.commands.at_server import (
    add_server_options,
    key_fits,
    positive,
    routing,
    server_of,
)
from paddlepool_client.commands.emotions import BAR, short
from paddlepool_client.commands.errors import INTERRUPTED, CommandError
from paddlepool_client.commands.pictures import (
    STANDARD,
    add_pictures,
    pictures_of,
    recorded,
    sources_of,
    standard_input,
)
from paddlepool_client.commands.records import Records, line
from paddlepool_client.commands.sending import is_fatal, refusal, send

TASK = "classify"
COLUMNS = ("picture", "label", "class_id", "score", "error")
FORMATS = (".csv", ".jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    add_pictures(parser)
    parser.add_argument(
        "--top", type=positive, help="labels per picture (default: the model's for one, else 1)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the labels as JSON, a line per picture"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the labels to this file, .csv (a row per label) or .jsonl (a line per "
        "picture); needed for a directory",
    )
    add_server_options(parser)


def run(args: argparse.Namespace, *, connect: Callable[..., Client] = Client) -> int:
    """Print the labels of each picture, or write them to a file.

    Returns 0 if every picture has labels, 1 if some failed, 2 if there is no picture, and 130 after
    Ctrl-C. If a run with -o ends before every picture has an answer, the same command continues
    with the pictures that have none. Raises CommandError for wrong options, and if the server is
    gone or would reject every picture.
    """
    connect = partial(connect, api_key=key_fits(args.api_key))
    if args.output and args.output.suffix not in FORMATS:
        raise CommandError(f"-o {args.output}: labels are written as {' or '.join(FORMATS)}")
    if STANDARD in args.pictures:
        return _standard_input(args, connect)
    sources, directory = sources_of(args)
    if args.output:
        sources = sources if directory is None else pictures_of(directory)
        return _write(args, sources, directory, connect) if sources else 2
    if directory:
        raise CommandError(f"{directory} is a directory; use -o labels.csv or -o labels.jsonl")
    results: dict[Path, Classification] = {}
    parameters = _parameters(args, one=len(sources) == 1)

    def one(client: Client, picture: Path) -> None:
        results[picture] = client.classify(picture, **parameters)

    with server_of(args, task=TASK, connect=connect) as url:
        done = send(sources, one, connect=connect, url=url, parameters=parameters, jobs=args.jobs)
    shown = {str(picture): results[picture] for picture in sources if picture in results}
    _print(args, shown, one=len(sources) == 1)
    return INTERRUPTED if done.interrupted else int(done.count < len(sources))


def _parameters(args: argparse.Namespace, *, one: bool) -> dict[str, Any]:
    top = args.top or (None if one else 1)
    return routing(args) | ({} if top is None else {"top": top})


def _standard_input(args: argparse.Namespace, connect: Callable[..., Client]) -> int:
    if args.output:
        raise CommandError("-o needs files or a directory, not standard input")
    content, parameters = standard_input(args), _parameters(args, one=True)
    with server_of(args, task=TASK, connect=connect) as url, connect(url) as client:
        try:
            result = client.classify(content, **parameters)
        except RequestFailed as error:
            raise CommandError(refusal(error, parameters) or str(error)) from error
    _print(args, {STANDARD: result}, one=True)
    return 0


def _print(args: argparse.Namespace, results: Mapping[str, Classification], *, one: bool) -> None:
    """Print a line of JSON for each picture, or a line for each label.

    The line of a label ends with a bar, or with the picture's name if there are several pictures.
    """
    labels = [label for result in results.values() for label in result.labels]
    width = max((len(short(label.label)) for label in labels), default=0)
    for picture, result in results.items():
        if args.json:
            print(line(_record(picture, result)), end="")
            continue
        for label in result.labels:
            behind = "█" * round(BAR * label.score) if one else picture
            print(f"{short(label.label):<{width}}  {label.score:6.1%}  {behind}".rstrip())


def _record(picture: str, result: Classification) -> dict[str, Any]:
    labels = [asdict(label) for label in result.labels]
    width, height = result.size
    sizes = {"width": width, "height": height}
    return {"picture": picture, "labels": labels, **sizes, "model": result.model}


def _write(
    args: argparse.Namespace,
    sources: list[Path],
    directory: Path | None,
    connect: Callable[..., Client],
) -> int:
    """Write the labels of the pictures to `args.output` when every picture has an answer.

    Until then, they are in the file NAME.part beside it, which the next run reads. A picture that
    the server rejects has an answer, too. Returns the exit code; see run().
    """
    names = {
        path: (path.relative_to(directory) if directory else path).as_posix() for path in sources
    }
    parameters = _parameters(args, one=False)
    part = args.output.with_name(f"{args.output.name}.part")
    records = Records(part, recorded({"top": parameters["top"]}, args))
    waiting = [path for path in sources if names[path] not in records.by_picture]

    def one(client: Client, picture: Path) -> None:
        try:
            result = client.classify(picture, **parameters)
        except (InvalidRequest, OSError) as error:  # the next run need not send it again
            if not is_fatal(error):
                records.add({"picture": names[picture], "error": str(error)})
            raise
        records.add(_record(names[picture], result))

    with server_of(args, task=TASK, connect=connect) as url:
        done = send(
            waiting,
            one,
            connect=connect,
            url=url,
            parameters=parameters,
            jobs=args.jobs,
            before=len(sources) - len(waiting),
        )
    results = [records.by_picture[name] for name in names.values() if name in records.by_picture]
    if len(results) < len(sources):
        print(
            f"{len(results)} of {len(sources)} pictures are in {part}; "
            "run the same command again to continue",
            file=sys.stderr,
        )
        return INTERRUPTED if done.interrupted else 1
    content = "".join(map(line, results)) if args.output.suffix == ".jsonl" else _table(results)
    whole = args.output.with_name(f".{args.output.name}.part")
    whole.write_text(content, "utf-8", newline="")
    whole.replace(args.output)
    part.unlink()
    failed = sum("error" in result for result in results)
    print(f"{len(results) - failed} of {len(results)} pictures classified in {args.output}")
    return int(failed > 0)


def _table(results: Iterable[Mapping[str, Any]]) -> str:
    """Return CSV with a row for each label, and one for each picture that was rejected."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, COLUMNS, restval="")
    writer.writeheader()
    for result in results:
        for label in result.get("labels", [{"error": result.get("error", "")}]):
            writer.writerow({"picture": result["picture"], **label})
    return file.getvalue()
