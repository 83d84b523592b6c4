"""Requests that carry one picture: a multipart form with a file, or the picture as the body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from app.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType

FILE_FIELDS = ("file", "image_file")
RAW_TYPES = ("image/", "application/octet-stream")
FIELD_BYTES = 1024

_HOW = (
    "send it as the file of a multipart form field named file (curl -F file=@photo.jpg), "
    "or as the whole body with Content-Type: image/*"
)


@dataclass(frozen=True, slots=True)
class Upload:
    """The picture's bytes, unopened, and every parameter by name, from the query or the form."""

    body: bytes
    parameters: Mapping[str, str]


async def read_upload(request: Request, *, known: Sequence[str], max_fields: int) -> Upload:
    """Read it all into memory; `known` are the parameters the endpoint has.

    Raises FileMissing, UnsupportedMediaType, InvalidParameter, and FileTooLarge from the body.

    A parameter may stand in the query or in the form, and once; what the file is called does not
    matter and is not read.
    """
    query = _once(request.query_params.multi_items(), known, "query")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        body, items = await _read_form(request, max_fields)
        fields = _once(items, known, "form")
        for name in query.keys() & fields.keys():
            raise InvalidParameter(f"{name} is given both in the query and in the form")
        return Upload(body, query | fields)
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


async def _read_form(request: Request, max_fields: int) -> tuple[bytes, list[tuple[str, str]]]:
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=1,
        max_fields=max_fields,
        max_part_size=FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException:
        raise InvalidParameter(
            f"the multipart form cannot be read, or has more than one file, more than {max_fields} "
            f"other fields, or a field of more than {FIELD_BYTES} bytes",
            limit=f"1 file, {max_fields} fields of {FIELD_BYTES} bytes",
        ) from None
    try:
        return await _one_file(form)
    finally:
        await form.close()
        parser.close_files()


async def _one_file(form: FormData) -> tuple[bytes, list[tuple[str, str]]]:
    """The file's bytes and the other fields."""
    items = form.multi_items()
    files = [(name, value) for name, value in items if isinstance(value, UploadFile)]
    fields = [(name, value) for name, value in items if isinstance(value, str)]
    if any(name in FILE_FIELDS for name, _ in fields):
        raise FileMissing(f"the form's file field holds text without a file name; {_HOW}")
    if not files:
        raise FileMissing(f"the form has no file; {_HOW}")
    [(name, file)] = files
    if name not in FILE_FIELDS:
        raise FileMissing(f"the form's file is in a field of another name; {_HOW}")
    return _not_empty(await file.read()), fields


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
