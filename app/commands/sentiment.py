"""`paddlepool sentiment`: one column of a CSV file through a running server."""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from app.client import ApiError, Client, Emotion
from app.errors import InvalidParameter

BATCH = 32


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, help="UTF-8 CSV with a header line")
    parser.add_argument("-o", "--output", type=Path, help="default: FILE with .emotion.csv")
    parser.add_argument("--column", default="text", help="which column to read (default text)")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key")


def run(args: argparse.Namespace) -> int:
    """Write the same rows with `label`, `score` and `error`; returns 1 when a row has an error."""
    output = args.output or args.file.with_suffix(".emotion.csv")
    if output.exists() and output.samefile(args.file):
        raise InvalidParameter(f"{output} is the input; the output must be another file")
    failed = 0
    with (
        Client(args.url, api_key=args.api_key) as client,
        args.file.open(encoding="utf-8-sig", newline="") as source,
        contextlib.ExitStack() as later,
        tqdm(unit="text") as bar,
    ):
        reader = csv.DictReader(source)
        columns = list(reader.fieldnames or [])
        if args.column not in columns:
            raise InvalidParameter(f"{args.file} has no column {args.column!r}, it has {columns}")
        # Not before: a mistake in the arguments must not empty the results of an earlier run.
        target = later.enter_context(output.open("w", encoding="utf-8", newline=""))
        writer = csv.DictWriter(target, [*columns, "label", "score", "error"])
        writer.writeheader()
        for batch in _batches(reader):
            texts = [row[args.column] or "" for row in batch]
            try:
                results: list[list[Emotion] | ApiError] = [*client.sentiment(texts, top_k=1)]
            except ApiError:
                # One bad text refuses its whole request: find it by asking for each alone.
                results = [_alone(client, text) for text in texts]
            for row, result in zip(batch, results, strict=True):
                if isinstance(result, ApiError):
                    failed += 1
                    row |= {"label": "", "score": "", "error": result.code}
                else:
                    row |= {"label": result[0].label, "score": f"{result[0].score:.4f}"}
                writer.writerow(row)
            bar.update(len(batch))
    print(f"{bar.n - failed} of {bar.n} texts classified in {output}", file=sys.stderr)
    return 1 if failed else 0


def _batches(reader: csv.DictReader[str]) -> Iterator[list[dict[str, str]]]:
    while batch := list(islice(reader, BATCH)):
        yield batch


def _alone(client: Client, text: str) -> list[Emotion] | ApiError:
    try:
        return client.sentiment([text], top_k=1)[0]
    except ApiError as error:
        return error
