"""Classify texts, or one column of a CSV file, through a running server."""

from __future__ import annotations

import argparse
import codecs
import contextlib
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from paddlepool_client import ApiError, Client, Emotion, RequestFailed
from paddlepool_client.commands.at_server import (
    add_server_options,
    key_fits,
    positive,
    routing,
    server_of,
    with_address,
)
from paddlepool_client.commands.csv_table import Table, resume
from paddlepool_client.commands.emotions import BATCH, print_emotions
from paddlepool_client.commands.errors import INTERRUPTED, CommandError

STANDARD = "-"
ADDED = ("label", "label_zh", "score", "error")
UNFINISHED = 2

TEXT_ERRORS = frozenset({413, 422})
"""Statuses of errors caused by the texts; any other error would also fail the next request."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts",
        nargs="+",
        metavar="TEXT",
        help="texts, - for standard input with one per line, or a CSV file with a header line",
    )
    parser.add_argument(
        "--top-k", type=positive, help="labels per text (default: all for one text, else 1)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the labels as JSON, one list per text"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="of a CSV file (default: FILE with .emotion.csv)"
    )
    parser.add_argument("--column", default="text", help="which column to read (default text)")
    parser.add_argument(
        "--prefix", default="", help=f"prefix of the new columns' names, {', '.join(ADDED)}"
    )
    parser.add_argument(
        "--encoding",
        type=_encoding,
        default="utf-8",
        help="encoding of FILE (default utf-8); the output is always UTF-8",
    )
    add_server_options(parser)


def run(args: argparse.Namespace, *, connect: Callable[..., Client] = Client) -> int:
    """Print the emotions of each text, or write those of a CSV file's rows.

    Returns and raises as print_emotions() does, or for a file as _file() does. Also raises
    CommandError for a key that no header can contain.
    """
    connect = partial(connect, api_key=key_fits(args.api_key))
    [first, *more] = args.texts
    if more or not _is_file(first):
        texts = _lines() if args.texts == [STANDARD] else args.texts
        return print_emotions(texts, args, connect=connect)
    args.file = Path(first)
    return _file(args, connect=connect)


def _is_file(text: str) -> bool:
    """Return whether `text` ends in .csv or is the path of an existing file or directory."""
    with contextlib.suppress(OSError, ValueError):  # too long for a name, or contains NUL
        return text.endswith(".csv") or (text not in ("", STANDARD) and Path(text).exists())
    return False


def _lines() -> list[str]:
    lines = sys.stdin.buffer.read().decode("utf-8-sig", errors="replace").split("\n")
    if not (texts := [line.removesuffix("\r") for line in lines if line.strip()]):
        raise CommandError("standard input has no text; expected one per line")
    return texts


def _file(args: argparse.Namespace, *, connect: Callable[..., Client]) -> int:
    """Write the rows of a CSV file with the columns ADDED.

    Returns 0 if every text has a label, 1 if a row has an error, 2 if the server failed before the
    end and 130 after Ctrl-C. After 2 and 130, the results are in a file with the suffix .part, and
    the same command continues with the rest. Raises CommandError for wrong options or a wrong file,
    and if no server answers at the start.
    """
    # Find mistakes in the arguments or the file before anything is written.
    table = Table(args.file, encoding=args.encoding)
    column, header = _check_columns(args, table)
    output = args.output or args.file.with_suffix(".emotion.csv")
    # The name contains the column: results of another column must not be continued.
    part = output.with_name(f"{output.name}.column{column + 1}.part")
    if any(path.exists() and path.samefile(args.file) for path in (output, part)):
        raise CommandError(f"{output} is the input; the output must be another file")
    begun = resume(part, header, table)
    failed, stopped, code = begun.failed, "", 0
    options = routing(args)
    with (
        server_of(args, task="sentiment", connect=connect) as url,
        connect(url) as client,
        part.open("a", encoding="utf-8", newline="") as target,
        tqdm(total=table.count, initial=begun.done, unit="text") as bar,
    ):
        writer = csv.writer(target, delimiter=table.delimiter)
        try:
            for batch in _batches(islice(table.rows(), begun.done, None)):
                results = _classify(client, [row[column] for row in batch], options)
                for row, result in zip(batch, results, strict=True):
                    if isinstance(result, ApiError):
                        failed += 1
                        writer.writerow([*row, "", "", "", f"{result.code}: {result.detail}"])
                        continue
                    chinese = result.label_zh or ""
                    writer.writerow([*row, result.label, chinese, f"{result.score:.4f}", ""])
                target.flush()
                bar.update(len(batch))
        except RequestFailed as error:
            stopped, code = with_address(url, error), UNFINISHED
        except KeyboardInterrupt:
            stopped, code = "interrupted", INTERRUPTED
    if stopped:
        print(
            f"{stopped}\n{bar.n} of {table.count} texts are in {part}; "
            "run the same command again to continue",
            file=sys.stderr,
        )
        return code
    part.replace(output)
    print(f"{bar.n - failed} of {bar.n} texts classified in {output}", file=sys.stderr)
    return 1 if failed else 0


def _check_columns(args: argparse.Namespace, table: Table) -> tuple[int, list[str]]:
    """Return the index of the text column, and the output's header.

    Raises CommandError unless the table has this column once and none of the new ones.
    """
    count = table.columns.count(args.column)
    if not count:
        raise CommandError(
            f"{args.file} has no column {args.column!r}, it has {list(table.columns)}; "
            "name one of them with --column"
        )
    if count > 1:
        raise CommandError(f"{args.file} has {count} columns {args.column!r}, expected one")
    added = [f"{args.prefix}{name}" for name in ADDED]
    if present := [name for name in added if name in table.columns]:
        raise CommandError(
            f"{args.file} has a column {present[0]!r} already; use --prefix, for example "
            "--prefix emotion_, to rename the new columns"
        )
    return table.columns.index(args.column), [*table.columns, *added]


def _batches(rows: Iterable[list[str]]) -> Iterator[list[list[str]]]:
    rows = iter(rows)
    while batch := list(islice(rows, BATCH)):
        yield batch


def _classify(
    client: Client, texts: list[str], options: Mapping[str, Any]
) -> list[Emotion | ApiError]:
    """Return the best emotion of each text, or its error if its status is one of TEXT_ERRORS.

    Raises RequestFailed for any other error.
    """
    try:
        return [emotions[0] for emotions in client.sentiment(texts, top_k=1, **options)]
    except ApiError as error:
        if error.status not in TEXT_ERRORS:
            raise
        if len(texts) == 1:
            return [error]
    # One bad text fails its whole request: send each alone to find it.
    return [result for text in texts for result in _classify(client, [text], options)]


def _encoding(name: str) -> str:
    try:
        "".encode(name)
    except LookupError:
        raise argparse.ArgumentTypeError(f"{name!r} is not a text encoding") from None
    # Excel writes a byte order mark before UTF-8; it is not part of the first column's name.
    return "utf-8-sig" if codecs.lookup(name).name == "utf-8" else name
