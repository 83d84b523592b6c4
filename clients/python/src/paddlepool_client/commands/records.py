"""Results of an unfinished run, one JSON object per line, from which the next run continues."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paddlepool_client.commands.errors import CommandError


class Records:
    """Records by the name of their picture, which are also in the file `part`; thread-safe.

    The first line of the file is `options`. The file does not exist while there is no record.
    """

    def __init__(self, part: Path, options: Mapping[str, Any]) -> None:
        """Read the whole lines of an earlier run, and cut off an incomplete one.

        Raises CommandError if the file is damaged or that run had other options, and OSError if the
        file cannot be read or written.
        """
        self.part = part
        self.by_picture: dict[str, dict[str, Any]] = {}
        self._options = options
        self._adding = threading.Lock()
        if part.exists():
            self._resume()

    def add(self, record: dict[str, Any]) -> None:
        """Append a record, whose member `picture` is the picture's name.

        Raises OSError if the file cannot be written.
        """
        with self._adding:
            first = not self.part.exists()
            with self.part.open("a", encoding="utf-8", newline="") as file:
                if first:
                    file.write(line(self._options))
                file.write(line(record))
            self.by_picture[record["picture"]] = record

    def _resume(self) -> None:
        content = self.part.read_bytes()
        lines = content.splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # writing it was interrupted
            content = content[: -len(lines.pop())]
            self.part.write_bytes(content)
        try:
            options, *records = map(json.loads, lines or [b"null"])
            self.by_picture = {record["picture"]: record for record in records}
        except (ValueError, TypeError, KeyError) as error:
            raise CommandError(f"{self.part} is damaged ({error}); remove it") from error
        if options is None:
            self.part.unlink()
        elif options != self._options:
            raise CommandError(
                f"{self.part} has results of other options: {json.dumps(options)}, asked for now: "
                f"{json.dumps(self._options)}; use another file, or remove that one"
            )


def line(value: Mapping[str, Any]) -> str:
    """Return JSON on one line with a line end. Lone surrogates, as in file names, are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"
