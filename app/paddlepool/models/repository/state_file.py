"""A small document in a file that the next start reads."""

import logging
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from paddlepool.models.repository.files import user_path, write_atomically

Document = TypeVar("Document", bound=BaseModel)

OFF = Path("off")
FILE = "choices.json"
"""Name of the default file; documents of another kind lie beside it."""

log = logging.getLogger(__name__)


def state_path(file: Path | None) -> Path | None:
    """Return the path of the state file: `file`, by default one in the user's home.

    Returns None, so that nothing is stored, if `file` is OFF or user_path() returns None.
    """
    return None if file == OFF else file or user_path("XDG_STATE_HOME", ".local/state", FILE)


class StateFile(Generic[Document]):
    """Reads and writes one document. Raises no OSError: the first problem is logged instead.

    With the path None, nothing is stored.
    """

    def __init__(self, path: Path | None, kind: type[Document]) -> None:
        self._path = path
        self._kind = kind
        self._seen: tuple[int, int] | None = None
        self._warned = False

    def read(self) -> Document | None:
        """Return the document; None if the file is missing, cannot be read or is invalid."""
        if self._path is None:
            return None
        try:
            _check_plain(self._path)
            return self._kind.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(f"cannot be read: {error.strerror or error}")
        except ValidationError as error:
            self._warn(f"is ignored: {error.errors(include_url=False)[0]['msg']}")
        return None

    def changed(self) -> bool:
        """Return whether the file was replaced since the last call, such as by another server.

        The first call returns whether the file exists. Returns False if it cannot be found.
        """
        try:
            status = self._path.stat() if self._path is not None else None
        except OSError:
            return False
        seen, self._seen = self._seen, status and (status.st_ino, status.st_mtime_ns)
        return self._seen != seen

    def write(self, document: Document) -> bool:
        """Replace the file; return False if that fails and may succeed later."""
        if self._path is None:
            return True
        text = document.model_dump_json(indent=1)
        try:
            _check_plain(self._path)
            write_atomically(self._path, f"{text}\n".encode())
        except OSError as error:
            self._warn(f"cannot be written: {error.strerror or error}")
            return False
        return True

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("PADDLEPOOL_STATE_FILE: %s %s", self._path, what)


def _check_plain(path: Path) -> None:
    """Raise OSError for a special file: reading a pipe blocks, and writing replaces a device."""
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
