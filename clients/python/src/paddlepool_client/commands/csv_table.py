"""Read a CSV file, and the partial results of an interrupted run over its rows."""

from __future__ import annotations

import codecs
import contextlib
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from paddlepool_client.commands.errors import CommandError

DELIMITERS = ",;\t"
"""Excel writes a semicolon where the decimal sign is a comma, and a tab in "Unicode text"."""
BOM = "\ufeff"


class Table:
    """A CSV file with a header line: its `columns`, and `count`, the number of its rows.

    `delimiter` is the one of DELIMITERS that gives the header the most columns. `for_excel` tells
    whether results in UTF-8 get a byte order mark, by which Excel knows the encoding: they do if
    the file has one or is not in UTF-8.

    **Invariant**: the whole file has been read once, so no row can stop a long run halfway.
    """

    def __init__(self, path: Path, *, encoding: str) -> None:
        """Read the header, and check every row.

        Raises CommandError if the file cannot be read or decoded, or if a row is wrong.
        """
        if not path.is_file():  # a pipe can be read only once
            raise CommandError(f"{path} is not a file")
        self._path = path
        self._encoding = encoding
        headers = {delimiter: tuple(next(self._read(delimiter), ())) for delimiter in DELIMITERS}
        self.delimiter = max(DELIMITERS, key=lambda key: len(headers[key]))
        self.columns: tuple[str, ...] = headers[self.delimiter]
        self.for_excel = not encoding.startswith("utf-8") or self._has_bom()
        self.count = sum(1 for _ in self.rows())

    def rows(self) -> Iterator[list[str]]:
        """Yield each row except blank lines; fields that a row lacks are empty."""
        rows = self._read(self.delimiter, len(self.columns))
        next(rows, None)
        for row in rows:
            if row:
                yield row + [""] * (len(self.columns) - len(row))

    def _has_bom(self) -> bool:
        with self._path.open("rb") as file:
            return file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8

    def _read(self, delimiter: str, most: int | None = None) -> Iterator[list[str]]:
        try:
            file = self._path.open(encoding=self._encoding, newline="")
        except OSError as error:
            raise CommandError(f"{self._path} cannot be read: {error.strerror}") from error
        with file:
            reader = csv.reader(file, delimiter=delimiter)
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


def resume(part: Path, header: Sequence[str], table: Table) -> Progress:
    """Keep the results in `part` of an earlier run over the table's rows; cut off anything else.

    Afterwards `part` exists, and contains the header and the rows that the returned Progress
    counts. A row with a non-empty last column has failed. Raises CommandError if `part` cannot be
    read or written.
    """
    begun = Progress()
    try:
        with part.open("r+b" if part.exists() else "w+b") as file:
            whole = 0
            reader = csv.reader(_whole_lines(file, table), delimiter=table.delimiter)
            with contextlib.suppress(csv.Error, UnicodeDecodeError):
                if next(reader, None) == list(header):
                    whole = file.tell()
                    for row, result in zip(table.rows(), reader, strict=False):
                        if len(result) != len(header) or result[: len(row)] != row:
                            break
                        begun = Progress(begun.done + 1, begun.failed + bool(result[-1]))
                        whole = file.tell()
            file.truncate(whole)
        if not whole:
            with part.open("w", encoding="utf-8", newline="") as empty:
                empty.write(BOM if table.for_excel else "")
                csv.writer(empty, delimiter=table.delimiter).writerow(header)
    except OSError as error:
        raise CommandError(f"{part} cannot be written: {error.strerror}") from error
    return begun


def _whole_lines(file: BinaryIO, table: Table) -> Iterator[str]:
    """Yield the complete lines; none if the table is `for_excel` and the file has no mark."""
    if table.for_excel and file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        return
    for line in file:
        if line.endswith(b"\n"):  # else writing it was interrupted
            yield line.decode("utf-8")
