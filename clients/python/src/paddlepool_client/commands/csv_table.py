"""Read a CSV file, and resume an interrupted run from its partial results."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from paddlepool_client.commands.errors import CommandError


class Table:
    """A CSV file with a header line: its `columns`, and `count`, the number of its rows.

    **Invariant**: the whole file has been read once, so no row can stop a long run halfway.
    """

    def __init__(self, path: Path, *, encoding: str) -> None:
        """Raises CommandError that names the line at fault."""
        if not path.is_file():  # a pipe can be read only once
            raise CommandError(f"{path} is not a file")
        self._path = path
        self._encoding = encoding
        self.columns: tuple[str, ...] = tuple(next(self._read(), ()))
        self.count = sum(1 for _ in self.rows())

    def rows(self) -> Iterator[list[str]]:
        """Each row with a field for every column, empty if the file has none; without blank
        lines."""
        rows = self._read(len(self.columns))
        next(rows, None)
        for row in rows:
            if row:
                yield row + [""] * (len(self.columns) - len(row))

    def _read(self, most: int | None = None) -> Iterator[list[str]]:
        try:
            file = self._path.open(encoding=self._encoding, newline="")
        except OSError as error:
            raise CommandError(f"{self._path} cannot be read: {error.strerror}") from error
        with file:
            reader = csv.reader(file)
            try:
                for row in reader:
                    if most is not None and len(row) > most:
                        raise CommandError(
                            f"{self._path}, line {reader.line_num}: "
                            f"{len(row)} fields, the header has {most}"
                        )
                    yield row
            except UnicodeDecodeError as error:
                # The file is decoded in blocks: the reader has not reached the wrong bytes yet.
                line = reader.line_num + 1 + error.object[: error.start].count(b"\n")
                raise CommandError(
                    f"{self._path}, line {line}: not {error.encoding}; "
                    "use --encoding, for example --encoding gb18030"
                ) from error
            except UnicodeError as error:
                raise CommandError(f"{self._path}: not {self._encoding}: {error}") from error
            except csv.Error as error:
                raise CommandError(f"{self._path}, line {reader.line_num}: {error}") from error


@dataclass(frozen=True, slots=True)
class Progress:
    """The number of rows with results, and how many of these are errors."""

    done: int = 0
    failed: int = 0


def resume(part: Path, header: Sequence[str], rows: Iterable[list[str]]) -> Progress:
    """Keep an earlier run's results for these rows; cut off anything else.

    Afterwards `part` exists and contains the header and that many rows. A row with a non-empty last
    column has failed. Raises CommandError if it cannot be written.
    """
    begun = Progress()
    try:
        with part.open("r+b" if part.exists() else "w+b") as file:
            whole = 0
            reader = csv.reader(_whole_lines(file))
            with contextlib.suppress(csv.Error, UnicodeDecodeError):
                if next(reader, None) == list(header):
                    whole = file.tell()
                    for row, result in zip(rows, reader, strict=False):
                        if len(result) != len(header) or result[: len(row)] != row:
                            break
                        begun = Progress(begun.done + 1, begun.failed + bool(result[-1]))
                        whole = file.tell()
            file.truncate(whole)
        if not whole:
            with part.open("w", encoding="utf-8", newline="") as empty:
                csv.writer(empty).writerow(header)
    except OSError as error:
        raise CommandError(f"{part} cannot be written: {error.strerror}") from error
    return begun


def _whole_lines(file: BinaryIO) -> Iterator[str]:
    for line in file:
        if line.endswith(b"\n"):  # else writing it was interrupted
            yield line.decode("utf-8")
