"""Requests that carry a picture: a multipart form with a file, or the picture as the body. A form
may carry a second one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from app.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType

FILE_FIELDS = ("file", "image_file")
RAW_TYPES = ("image/", "application/octet-stream")
FIELD_BYTES = 1024
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1")
"""Of a form's fields. Python keeps every name that its codecs are asked for and do not know, for
good, and has codecs that fail in ways of their own."""

_HOW = (
    "send it as the file of a multipart form field named file (curl -F file=@photo.jpg), "
    "or as the whole body with Content-Type: image/*"
)


@dataclass(frozen=True, slots=True)
class Upload:
    """The picture's bytes, unopened, and every parameter by name, from the query or the form.
    `second` are those of the second picture, None without one."""

    body: bytes
    parameters: Mapping[str, str]
    second: bytes | None = None


async def read_upload(
    request: Request, *, known: Sequence[str], max_fields: int, second: Sequence[str] = ()
) -> Upload:
    """Read it all into memory; `known` are the parameters the endpoint has, `second` the names that
    the form's field of a second picture may have.

    Raises FileMissing, UnsupportedMediaType, InvalidParameter, and FileTooLarge from the body.

    A parameter may stand in the query or in the form, and once; what the file is called does not
    matter and is not read.
    """
    query = _once(request.query_params.multi_items(), known, "query")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        form = await _read_form(request, max_fields, second)
        fields = _once(form.items, known, "form")
        for name in query.keys() & fields.keys():
            raise InvalidParameter(f"{name} is given both in the query and in the form")
        return Upload(form.body, query | fields, form.second)
    if kind.startswith(RAW_TYPES):
        return Upload(_not_empty(await request.body()), query)
    if not kind and not await request.body():
        raise FileMissing(f"the request has no picture; {_HOW}")
    raise UnsupportedMediaType(
        f"the body is neither multipart/form-data nor a picture; {_HOW}",
        limit="multipart/form-data, image/*",
    )


class _InMemoryParser(MultiPartParser):
    # The body is capped while it streams, so nothing needs to go to a disk that may be read-only.
    spool_max_size = 1 << 40

    def close_files(self) -> None:
        """Also those of a part that was cut off, which never reach the form."""
        for file in self._files_to_close_on_error:
            file.close()


@dataclass(frozen=True, slots=True)
class _Form:
    body: bytes
    second: bytes | None
    items: list[tuple[str, str]]


async def _read_form(request: Request, max_fields: int, second: Sequence[str]) -> _Form:
    _check_charset(request.headers["content-type"])
    files = 2 if second else 1
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=files,
        max_fields=max_fields,
        max_part_size=FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException:
        count = "two files" if second else "one file"
        raise InvalidParameter(
            f"the multipart form cannot be read, or has more than {count}, more than {max_fields} "
            f"other fields, or a field of more than {FIELD_BYTES} bytes",
            limit=f"{count}, {max_fields} fields of {FIELD_BYTES} bytes",
        ) from None
    try:
        return await _sorted_out(form, second)
    finally:
        await form.close()
        parser.close_files()


def _check_charset(content_type: str) -> None:
    """Before the parser looks the charset up, and as it reads it. Raises InvalidParameter."""
    charset = parse_options_header(content_type)[1].get(b"charset", b"utf-8")
    if charset.decode("latin-1").lower() not in CHARSETS:
        raise InvalidParameter(
            f"the form's charset must be one of {', '.join(CHARSETS)}", limit=", ".join(CHARSETS)
        )


async def _sorted_out(form: FormData, second: Sequence[str]) -> _Form:
    """The files' bytes and the other fields."""
    items = form.multi_items()
    files = [(name, value) for name, value in items if isinstance(value, UploadFile)]
    fields = [(name, value) for name, value in items if isinstance(value, str)]
    for name, _ in fields:
        if name in FILE_FIELDS:
            raise FileMissing(f"the form's file field holds text without a file name; {_HOW}")
        if name in second:
            raise FileMissing(
                f"the form's field {name} holds text; send the second picture as a file "
                f"(curl -F {name}=@beach.jpg)"
            )
    ours = [file for name, file in files if name in FILE_FIELDS]
    others = [(name, file) for name, file in files if name in second]
    if len(ours) + len(others) < len(files):
        raise FileMissing(f"the form's file is in a field of another name; {_HOW}")
    if not ours:
        raise FileMissing(f"the form has no file; {_HOW}")
    for name, count in ((FILE_FIELDS[0], len(ours)), (second[0] if second else "", len(others))):
        if count > 1:
            raise InvalidParameter(f"the form has more than one file for {name}", limit="one file")
    background = None
    if others:
        [(name, file)] = others
        background = await file.read()
        if not background:
            raise FileMissing(f"{name}: the picture has 0 bytes", received=0)
    return _Form(_not_empty(await ours[0].read()), background, fields)


def _not_empty(body: bytes) -> bytes:
    if not body:
        raise FileMissing("the picture has 0 bytes", received=0)
    return body


def _once(items: Iterable[tuple[str, str]], known: Sequence[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in items:
        if name not in known:
            # The name is the client's own and is not repeated.
            raise InvalidParameter(
                f"the {where} has an unknown parameter; known are {', '.join(known)}",
                limit=", ".join(known),
            )
        if name in found:
            raise InvalidParameter(f"{name} is given twice in the {where}")
        found[name] = value
    return found
