"""Read multipart forms, JSON objects and requests with a picture into memory.

A picture is the body itself, a file of a form, or base64 text. A form may have several pictures.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from paddlepool.contracts.errors import FileMissing, InvalidParameter, UnsupportedMediaType
from paddlepool.service.api.json_text import parsed

FORM = "multipart/form-data"
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin-1", "latin1")
"""Charsets that a form may declare. Python caches every unknown charset name forever, and some of
its codecs fail in unusual ways."""


Form = tuple[list[tuple[str, bytes]], list[tuple[str, str]]]
"""The parts of a form in order, each with its name: the bytes of files, the text of other fields.

A file with neither a name nor bytes is left out: browsers send one if the user chose no file."""


def media_type(request: Request) -> str:
    """Return the body's media type in lower case without parameters; "" if the request has none."""
    for name, value in request.scope["headers"]:  # request.headers.get() would take longer
        if name == b"content-type":
            return cast(bytes, value).decode("latin-1").partition(";")[0].strip().lower()
    return ""


MAX_DELIMITERS = 4_096
"""Maximum opening brackets, colons and commas in a body; base64 contains none of them. The parser
needs far more memory and time for each of them than for any other byte."""


def json_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidParameter for anything else and above MAX_DELIMITERS."""
    delimiters = sum(map(body.count, (b"[", b"{", b":", b",")))
    if delimiters > MAX_DELIMITERS:
        raise InvalidParameter(
            f"the body has {delimiters} brackets, colons and commas, the limit is {MAX_DELIMITERS}"
        )
    try:
        document = parsed(body)
    except ValueError as error:
        raise InvalidParameter(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidParameter("the body must be a JSON object")
    return document


async def read_form(request: Request, *, max_files: int, max_fields: int, field_bytes: int) -> Form:
    """Read a request that is a multipart form.

    Raises FileMissing for a text of more than `field_bytes` in a field of FILE_FIELDS,
    InvalidParameter for a form that is malformed, exceeds a limit or declares a charset that is not
    in CHARSETS, and the errors of Exchange.receive().
    """
    # Checked before the parser looks for the charset's codec.
    charset = parse_options_header(request.headers["content-type"])[1].get(b"charset", b"utf-8")
    if charset.decode("latin-1").lower() not in CHARSETS:
        accepted = ", ".join(CHARSETS)
        raise InvalidParameter(f"the form's charset must be one of {accepted}", limit=accepted)
    parser = _InMemoryParser(
        request.headers,
        request.stream(),
        max_files=max_files,
        max_fields=max_fields,
        max_part_size=field_bytes,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        part = parser._current_part  # the exception has only a sentence
        if "exceeded" in error.message and part.field_name in FILE_FIELDS:
            raise FileMissing(
                f"the form's field {part.field_name} holds text and no file; {_UPLOAD_HINT}"
            ) from None
        count = {1: "one file", 2: "two files"}.get(max_files, f"{max_files} files")
        raise InvalidParameter(
            f"the multipart form cannot be read, or has more than {count}, more than {max_fields} "
            f"other fields, or a field of more than {field_bytes} bytes",
            limit=f"{count}, {max_fields} fields of {field_bytes} bytes",
        ) from None
    try:
        items = form.multi_items()
        files = [
            (name, await value.read())
            for name, value in items
            if isinstance(value, UploadFile) and (value.filename or value.size)
        ]
        return files, [(name, value) for name, value in items if isinstance(value, str)]
    finally:
        await form.close()
        parser.close_files()


class _InMemoryParser(MultiPartParser):
    # The body is capped while it streams, so it fits in memory; the disk may be read-only.
    # Starlette documents neither this attribute nor `_files_to_close_on_error`, and has no setting
    # for either. If they change, the first test to fail is
    # test_a_large_file_is_never_written_to_disk in tests/tasks/segment/test_router.py.
    spool_max_size = 1 << 40

    def close_files(self) -> None:
        """Close all files, including those of truncated parts, which never reach the form."""
        for file in self._files_to_close_on_error:
            file.close()


FILE_FIELDS = ("file", "image_file")
RAW_TYPES = ("image/", "application/octet-stream")
RAW_CONTENT = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
"""A raw body in OpenAPI. Client generators skip wildcard types like `image/*`."""

FIELD_BYTES = 1024

_UPLOAD_HINT = (
    "send it as the file of a multipart form field named file (curl -F file=@photo.jpg), "
    "or as the whole body with Content-Type: image/*"
)


async def read_upload(
    request: Request, *, known: Sequence[str], max_fields: int, second: Sequence[str] = ()
) -> tuple[bytes, bytes | None, Mapping[str, str]]:
    """Read an upload into memory: its picture, a second picture or None, and its parameters.

    The picture is the body, or a file of a form in a field of FILE_FIELDS. `second` lists the names
    that the form's field for a second picture may have. Each parameter of `known` may occur once,
    in query or form; others are rejected. Raises FileMissing, UnsupportedMediaType,
    InvalidParameter, and the errors of Exchange.receive().
    """
    query = _read_parameters(request.query_params.multi_items(), known, "query")
    if media_type(request) == FORM:
        files, fields = await read_form(
            request, max_files=2 if second else 1, max_fields=max_fields, field_bytes=FIELD_BYTES
        )
        # Pages send an empty field if the user chose no second picture.
        sent = [(name, value) for name, value in fields if value or name not in second]
        picture, background = _pick_pictures(files, sent, second)
        return picture, background, _merged(query, _read_parameters(sent, known, "form"), "form")
    return _body_picture(request, await request.body()), None, query


async def read_pictures(
    request: Request, *, known: Sequence[str], max_fields: int, max_files: int
) -> tuple[list[bytes], dict[str, str]]:
    """Read a request whose body is a picture, or a form with at most `max_files` pictures.

    Returns the pictures and the parameters. Pictures are in fields of FILE_FIELDS. Each parameter
    of `known` may occur once, in query or form; others are rejected. Raises as read_upload() does.
    """
    query = _read_parameters(request.query_params.multi_items(), known, "query")
    if media_type(request) != FORM:
        return [_body_picture(request, await request.body())], query
    files, fields = await read_form(
        request, max_files=max_files, max_fields=max_fields, field_bytes=FIELD_BYTES
    )
    pictures = [_not_empty(body) for name, body in files if name in FILE_FIELDS]
    if not pictures or len(pictures) < len(files):
        raise FileMissing(
            f"the form has no file, or one in a field of another name; {_UPLOAD_HINT}"
        )
    return pictures, _merged(query, _read_parameters(fields, known, "form"), "form")


def check_query(request: Request, known: Sequence[str]) -> None:
    """Raise InvalidParameter if the query has a name that is not in `known`, or one twice."""
    if request.scope["query_string"]:  # most requests have none, and parsing takes time
        _read_parameters(request.query_params.multi_items(), known, "query")


def json_parameters(
    request: Request, document: Mapping[str, Any], *, known: Sequence[str], content: Sequence[str]
) -> dict[str, Any]:
    """Return the parameters of a request whose body is the JSON `document`.

    Each parameter of `known` may occur once, in query or document; `content` names the document's
    other members. Raises InvalidParameter for any other name, and for a parameter in both places.
    """
    query = _read_parameters(request.query_params.multi_items(), known, "query")
    if not document.keys() <= {*known, *content}:
        raise _unknown("body", (*content, *known))
    members = {name: value for name, value in document.items() if name in known}
    return _merged(query, members, "body")


def _body_picture(request: Request, body: bytes) -> bytes:
    """Return the body if it is a picture. Raises FileMissing and UnsupportedMediaType."""
    kind = media_type(request)
    if kind.startswith(RAW_TYPES):
        return _not_empty(body)
    if not kind and not body:
        raise FileMissing(f"the request has no picture; {_UPLOAD_HINT}")
    raise UnsupportedMediaType(
        f"the body is neither multipart/form-data nor a picture; {_UPLOAD_HINT}",
        limit="multipart/form-data, image/*",
    )


def _merged(query: Mapping[str, str], body: Mapping[str, Any], where: str) -> dict[str, Any]:
    for name in body:
        if name in query:
            message = f"{name} is given both in the query and in the {where}"
            raise InvalidParameter(message, parameter=name)
    return {**query, **body}


def _pick_pictures(
    files: Sequence[tuple[str, bytes]], fields: Iterable[tuple[str, str]], second: Sequence[str]
) -> tuple[bytes, bytes | None]:
    """Return the picture and the second one, or None, from the form's files.

    Raises FileMissing and InvalidParameter.
    """
    for name, _ in fields:
        if name in FILE_FIELDS:
            raise FileMissing(
                f"the form's file field holds text without a file name; {_UPLOAD_HINT}"
            )
        if name in second:
            raise FileMissing(
                f"the form's field {name} holds text; send the second picture as a file "
                f"(curl -F {name}=@beach.jpg)"
            )
    pictures = [body for name, body in files if name in FILE_FIELDS]
    backgrounds = [(name, body) for name, body in files if name in second]
    if len(pictures) + len(backgrounds) < len(files):
        raise FileMissing(f"the form's file is in a field with another name; {_UPLOAD_HINT}")
    if not pictures:
        raise FileMissing(f"the form has no file; {_UPLOAD_HINT}")
    if len(pictures) > 1 or len(backgrounds) > 1:
        name = FILE_FIELDS[0] if len(pictures) > 1 else second[0]
        raise InvalidParameter(f"the form has more than one file for {name}", limit="one file")
    for name, body in backgrounds:
        if not body:
            raise FileMissing(f"{name}: the picture has 0 bytes", received=0)
    return _not_empty(pictures[0]), backgrounds[0][1] if backgrounds else None


def _not_empty(body: bytes) -> bytes:
    if not body:
        raise FileMissing("the picture has 0 bytes", received=0)
    return body


def _read_parameters(
    items: Iterable[tuple[str, str]], known: Sequence[str], where: str
) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in items:
        if name not in known:
            raise _unknown(where, known)
        if name in parameters:
            raise InvalidParameter(f"{name} is given twice in the {where}", parameter=name)
        parameters[name] = value
    return parameters


def _unknown(where: str, known: Iterable[str]) -> InvalidParameter:
    """Build the error about an unknown name. The client chose it, so it is not repeated."""
    names = ", ".join(known)
    return InvalidParameter(f"the {where} has an unknown parameter; known are {names}", limit=names)


NOT_FETCHED = (
    "pictures are not fetched by URL, because that would expose addresses that only the server "
    "can reach; send the picture itself"
)
ADDRESSES = (b"http://", b"https://", b"ftp://", b"file://")


def picture_in_base64(value: object, name: str) -> bytes:
    """Decode base64, with or without a `data:` prefix; `name` is the field's, for errors.

    White space is ignored. Raises FileMissing if the picture is missing or has 0 bytes, and
    InvalidParameter for a URL, another type, a wrong length and other characters, such as those of
    URL-safe base64.
    """
    if value is None or value in ("", b""):
        raise FileMissing(f"{name} is missing: the picture, base64")
    if not isinstance(value, str | bytes):
        raise InvalidParameter(f"{name} must be a picture as base64")
    text = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    beginning = text[:8].lower()
    if beginning.startswith(ADDRESSES):
        raise refused(name, NOT_FETCHED)
    if beginning.startswith(b"data:"):
        text = text[text.find(b",", 0, 256) + 1 :]
    try:
        picture = _strictly_decoded(text)
    except binascii.Error:
        raise InvalidParameter(f"{name} is not base64 (A-Z, a-z, 0-9, + and /)") from None
    if not picture:
        raise FileMissing(f"{name}: the picture has 0 bytes")
    return picture


def _strictly_decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:  # most texts have no white space, and a copy without it takes time
        return base64.b64decode(b"".join(text.split()), validate=True)


def refused(name: str, why: str) -> InvalidParameter:
    """Build the error that rejects the body's field `name` and says `why`."""
    errors = ({"field": f"body.{name}", "message": why},)
    return InvalidParameter(f"{name}: {why}", parameter=name, errors=errors)
