"""Multipart forms, read into memory: their files and their other fields."""

from __future__ import annotations

from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from app.contracts.errors import InvalidParameter

FORM = "multipart/form-data"
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1")
"""Charsets accepted for a form's fields. Python keeps every unknown name that it is asked for, for
good, and has codecs that fail in ways of their own."""


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of a form, in its order: the bytes of its files and the text of its other fields. A
    file without a name and without bytes, as browsers send where nobody chose one, is left out."""

    files: list[tuple[str, bytes]]
    fields: list[tuple[str, str]]


def media_type(request: Request) -> str:
    """The body's, in small letters and without parameters; empty where none is named."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_form(request: Request, *, max_files: int, max_fields: int, field_bytes: int) -> Form:
    """Read a multipart form. Raises InvalidParameter, and FileTooLarge from the body."""
    _check_charset(request.headers["content-type"])
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=field_bytes,
    )
    try:
        form = await parser.parse()
    except MultiPartException:
        count = "one file" if max_files == 1 else f"{_WORDS.get(max_files, max_files)} files"
        raise InvalidParameter(
            f"the multipart form cannot be read, or has more than {count}, more than {max_fields} "
            f"other fields, or a field of more than {field_bytes} bytes",
            limit=f"{count}, {max_fields} fields of {field_bytes} bytes",
        ) from None
    try:
        items = form.multi_items()
        return Form(
            [
                (name, await value.read())
                for name, value in items
                if isinstance(value, UploadFile) and (value.filename or value.size)
            ],
            [(name, value) for name, value in items if isinstance(value, str)],
        )
    finally:
        await form.close()
        parser.close_files()


_WORDS = {2: "two"}


class _InMemoryParser(MultiPartParser):
    # The body is capped while it streams, so nothing needs to go to a disk that may be read-only.
    spool_max_size = 1 << 40

    def close_files(self) -> None:
        """Also those of a part that was cut off, which never reach the form."""
        for file in self._files_to_close_on_error:
            file.close()


def _check_charset(content_type: str) -> None:
    """Before the parser looks the charset up, and as it reads it. Raises InvalidParameter."""
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.decode("latin-1").lower() not in CHARSETS:
        raise InvalidParameter(
            f"the form's charset must be one of {', '.join(CHARSETS)}", limit=", ".join(CHARSETS)
        )
