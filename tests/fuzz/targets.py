"""What takes bytes that a stranger may have made: one function each, for any fuzzer.

Each takes any bytes, and raises only where there is a fault.
"""

import asyncio
import atexit
import contextlib
import functools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from starlette.requests import Request
from starlette.types import Message

from paddlepool.contracts.errors import ConfigError, InputError, ManifestError
from paddlepool.contracts.tensors import DTYPES, STRINGS, Array, TensorSpec
from paddlepool.engine.process.replies import Message as ChildMessage
from paddlepool.engine.process.replies import parse_message
from paddlepool.engine.process.shared_arrays import SharedArrays
from paddlepool.models.repository.config import load_config
from paddlepool.models.repository.manifest import MANIFEST, read_manifest
from paddlepool.service.api.uploads import read_upload
from paddlepool.service.api.v2.documents import Expected, ReplyForm, parse_request, write_reply
from paddlepool.settings.server import Settings
from paddlepool.tasks.codecs.decode import check_scans
from paddlepool.tasks.codecs.limits import PictureLimits, sniff
from tests.fuzz import seeds
from tests.fuzz.http_entry import PIECE_BYTES, http

LIMITS = PictureLimits()
SETTINGS = Settings()
EXPECTED = Expected(
    inputs=[TensorSpec(dtype, dtype, (-1, 2)) for dtype in (*DTYPES, STRINGS)],
    outputs=(TensorSpec("scores", "float32", (-1, 3)), TensorSpec("halves", "float16", (-1, 1))),
    labels=("a", "b"),
)
OUTPUTS: dict[str, Array] = {
    "scores": np.array([[0.5, -1.0, 2.0]], np.float32),
    "halves": np.array([[0.1]], np.float16),
}


def multipart(data: bytes) -> None:
    """A first line that is the form's Content-Type, and the body: a picture, or InputError."""
    kind, _, body = data.partition(b"\n")
    pieces = [body[at : at + PIECE_BYTES] for at in range(0, len(body), PIECE_BYTES)] or [b""]
    for parts in ([body], pieces):
        with contextlib.suppress(InputError):
            _loop().run_until_complete(_upload(kind, parts))


async def _upload(kind: bytes, parts: list[bytes]) -> None:
    last = len(parts) - 1
    messages = (
        {"type": "http.request", "body": part, "more_body": number < last}
        for number, part in enumerate(parts)
    )

    async def receive() -> Message:
        return next(messages)

    headers = [(b"content-type", b"multipart/form-data; " + kind)]
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": headers}
    request = Request(scope, receive)
    await read_upload(request, known=("size",), max_fields=4, second=("bg_image",))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def tensors(data: bytes) -> None:
    """JSON, and behind the byte 0 raw tensors: what was declared, or InvalidTensor; and a reply in
    the form asked for."""
    head, split, raw = data.partition(b"\0")
    try:
        request_read = parse_request(
            head + raw,
            header_length=len(head) if split else None,
            expected=EXPECTED,
            settings=SETTINGS,
        )
    except InputError:
        return
    for name, array in request_read.inputs.items():
        assert array.dtype.name == name, "each input is named as its type"
        assert array.size >= 0
    form = request_read.state
    assert isinstance(form, ReplyForm)
    body, length = write_reply(OUTPUTS, form, model="m", version=1)
    json.loads(body[:length])


def repository_files(data: bytes) -> None:
    """A manifest and a config.toml of these bytes: read, or refused by an error of its own."""
    version = _directory() / "model" / "1"
    version.mkdir(parents=True, exist_ok=True)
    for file in (version / MANIFEST, version.parent / "config.toml"):
        file.write_bytes(data)
    with contextlib.suppress(ManifestError):
        manifest = read_manifest(version)
        assert manifest.reference.program in manifest.files
    with contextlib.suppress(ConfigError):
        config = load_config(version.parent / "config.toml")
        for group in config.instance_group:
            config.served_by(group.name)
            config.base_of(group.name)
        config.version_policy.choose((3, 2, 1))


@functools.cache
def _directory() -> Path:
    made = Path(tempfile.mkdtemp(prefix="paddlepool-fuzz-"))
    atexit.register(shutil.rmtree, made)
    return made


def picture_header(data: bytes) -> None:
    """Read the format from the first bytes and, of a JPEG, count the scans; open no decoder."""
    with contextlib.suppress(InputError):
        if sniff(data) == "JPEG":
            check_scans(data, 640, 480, LIMITS)


def child_answer(data: bytes) -> None:
    """Either views within the block, an error to raise, or ValueError."""
    block = SharedArrays.create("fuzz")
    try:
        block.write({})
        with contextlib.suppress(ValueError):
            parsed = parse_message(data)
            if isinstance(parsed, ChildMessage):
                for view in block.read(parsed.layout).values():
                    assert not view.size, "the block has no byte"
                    assert view.dtype.kind in "biuf"
    finally:
        block.close()


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "http": (http, seeds.requests),
    "multipart": (multipart, seeds.forms),
    "tensors": (tensors, seeds.tensor_requests),
    "repository_files": (repository_files, seeds.files),
    "picture_header": (picture_header, seeds.pictures),
    "child_answer": (child_answer, seeds.answers),
}
"""By name: the function, and the bytes to begin with."""
