"""POST /segment: request and reply forms, in the real application over a fake data plane."""

import base64
import encodings
import random
import re
import tempfile
from typing import Any, Literal, get_args, get_origin, get_type_hints

import httpx
import pytest

from paddlepool.service.api.pages import STATIC
from paddlepool.service.api.services import LARGE_BYTES
from paddlepool.tasks.segment.request import OPTIONS, SegmentRequest
from paddlepool_client import SegmentOptions, Source
from tests.compat.fakes import PICTURE, FakeServer, shared_server
from tests.service.api.fakes import RecordingExecutor, assert_problem


@pytest.fixture
def server() -> FakeServer:
    return shared_server()


def form(
    server: FakeServer, query: str = "", fields: dict[str, str] | None = None
) -> httpx.Response:
    files = {"file": ("../../etc/passwd", PICTURE, "text/x-lie")}
    return server.post(f"/segment{query}", files=files, data=fields or {})


def raw(server: FakeServer, query: str = "", **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    kind = {"content-type": "image/jpeg"}
    return server.post(f"/segment{query}", content=PICTURE, headers=kind | names)


def assert_refused(response: httpx.Response, status: int, code: str, says: str = "") -> None:
    assert says in assert_problem(response, status, code)["detail"]
    assert "secret" not in response.text


@pytest.mark.parametrize(
    "kind", ["image/jpeg", "image/*", "IMAGE/PNG; q=1", "application/octet-stream"]
)
def test_the_picture_may_be_the_body(server: FakeServer, kind: str) -> None:
    assert raw(server, content_type=kind).content == b"encoded"
    assert server.plane.picture.body == PICTURE


@pytest.mark.parametrize("where", ["query", "form"])
def test_parameters_stand_in_the_query_or_in_the_form(server: FakeServer, where: str) -> None:
    fields = {
        "output": "composite",
        "format": "jpg",
        "size": "preview",
        "bg_color": "#0080ff",
        "crop": "true",
        "refine": "none",
        "threshold": "0.5",
        "shadow": "drop",
        "model": "u2netp@3",
        "instance_group": "native",
        "timeout_ms": "2500",
    }
    if where == "form":
        response = form(server, fields=fields)
    else:
        response = server.post(
            "/segment", params=fields, content=PICTURE, headers={"content-type": "image/png"}
        )
    assert response.status_code == 200, response.text
    assert server.plane.picture == SegmentRequest(
        body=PICTURE,
        output="composite",
        format="jpg",
        size="preview",
        bg_color=(0, 128, 255, 255),
        crop=True,
        refine="none",
        threshold=0.5,
        shadow="drop",
    )
    routing = {"model": "u2netp", "version": 3, "group": "native", "timeout": 2.5}
    assert server.plane.options == [routing]


@pytest.mark.parametrize(
    ("query", "accept", "expected"),
    [
        ("", "image/webp", "webp"),
        ("", "image/jpeg", "png"),
        ("?output=composite", "image/jpeg", "jpg"),
        ("?format=png", "image/webp", "png"),
    ],
)
def test_accept_chooses_a_format_that_can_hold_the_output(
    server: FakeServer, query: str, accept: str, expected: str
) -> None:
    """The parameter `format` takes precedence."""
    assert raw(server, query, accept=accept).status_code == 200
    assert server.plane.picture.format == expected


@pytest.mark.parametrize("where", ["query", "form"])
def test_escapes_are_explained_to_those_who_sent_a_query(server: FakeServer, where: str) -> None:
    field = {"scale": "80"}
    query = "?scale=80" if where == "query" else ""
    response = form(server, query, {} if query else field)
    assert_refused(response, 422, "invalid_parameter", "scale must be original or 10% to 100%")
    assert ("(in a query, % is written %25" in response.text) == (where == "query")


@pytest.mark.parametrize("query", ["?bg_color=red", "?scale=500%25", "?size=huge"])
def test_escapes_are_not_explained_where_they_are_not_at_fault(
    server: FakeServer, query: str
) -> None:
    response = form(server, query)
    assert response.status_code == 422
    assert "in a query" not in response.text


def test_the_reply_carries_the_picture_and_where_it_came_from(server: FakeServer) -> None:
    response = raw(server, "?output=mask")
    assert response.status_code == 200
    expected = {
        "content-type": "image/png",
        "content-disposition": 'inline; filename="mask.png"',
        "x-width": "3",
        "x-height": "2",
        "x-foreground-top": "1",
        "x-foreground-left": "2",
        "x-foreground-width": "3",
        "x-foreground-height": "4",
        "x-model": "u2netp@2",
        "x-instance-group": "onednn",
        "x-predictor": "onednn",
        "server-timing": "queue;dur=0.00, infer;dur=100.00",
        "vary": "Accept",
    }
    assert {name: response.headers[name] for name in expected} == expected


def test_json_is_sent_where_accept_asks_for_it(server: FakeServer) -> None:
    response = raw(server, accept="application/json")
    assert response.json() == {
        "width": 3,
        "height": 2,
        "foreground_box": {"top": 1, "left": 2, "width": 3, "height": 4},
        "confidence": 0.9,
        "format": "png",
        "image": base64.b64encode(b"encoded").decode(),
        "timings": {"queue": 0.0, "infer": 100.0},
        "model": "u2netp@2",
        "instance_group": "onednn",
        "predictor": "onednn",
    }
    assert response.headers["x-model"] == "u2netp@2"


def test_a_large_picture_becomes_json_beside_the_event_loop() -> None:
    """Base64 of some megabytes takes longer than a liveness probe should wait."""
    operations = RecordingExecutor()
    server = FakeServer(operations)
    for size, apart in ((LARGE_BYTES, 0), (LARGE_BYTES + 1, 1), (1_000_003, 2)):
        server.plane.image = random.Random(size).randbytes(size)
        reply = raw(server, accept="application/json").json()
        assert base64.b64decode(reply["image"], validate=True) == server.plane.image
        assert operations.runs == apart


@pytest.mark.parametrize(
    ("query", "fields", "says"),
    [
        ("?output=secret", {}, "output must be one of"),
        ("?secret=1", {}, "unknown parameter"),
        ("", {"secret": "1"}, "unknown parameter"),
        ("?bg_image=secret", {}, "unknown parameter"),
        ("?crop=true", {"crop": "true"}, "both in the query and in the form"),
        ("?crop=true&crop=false", {}, "twice"),
        ("?timeout_ms=soon", {}, "whole number"),
        ("?timeout_ms=99999999999999999999", {}, "whole number"),
        ("?timeout_ms=30001", {}, "30000"),
        ("?model=u2netp@secret", {}, "integer version"),
        ("?predictor=secret", {"instance_group": "b"}, "instance_group and predictor, its alias"),
        ("", {"refine": "x" * 2000}, "1024 bytes"),
    ],
)
def test_a_wrong_parameter_is_refused(
    server: FakeServer, query: str, fields: dict[str, str], says: str
) -> None:
    assert_refused(form(server, query, fields), 422, "invalid_parameter", says)
    assert not server.plane.payloads


@pytest.mark.parametrize(
    "kind", ["application/json", "text/plain", "application/x-www-form-urlencoded"]
)
def test_other_bodies_are_unsupported(server: FakeServer, kind: str) -> None:
    assert_refused(
        raw(server, content_type=kind), 415, "unsupported_media_type", "multipart/form-data"
    )


def multipart(content: bytes, parameters: str = "boundary=x") -> dict[str, Any]:
    kind = f"multipart/form-data; {parameters}"
    return {"content": content, "headers": {"content-type": kind}}


FIRST, SECOND = ("file", ("a", PICTURE)), ("bg_image", ("b", b"second"))
FIELDS = [(f"secret{number}", (None, "x")) for number in range(17)]
CUT_OFF = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + PICTURE


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        ({}, "file_missing", ""),
        ({"content": b"", "headers": {"content-type": "image/png"}}, "file_missing", ""),
        ({"files": [("file", ("a.png", b""))]}, "file_missing", ""),
        ({"files": [("file", (None, b"secret"))]}, "file_missing", ""),
        ({"files": [("file", (None, b"secret" * 999))]}, "file_missing", "text and no file"),
        ({"files": [FIRST, ("format", (None, b"x" * 2000))]}, "invalid_parameter", "1024 bytes"),
        ({"files": [("picture", ("a.png", PICTURE))]}, "file_missing", ""),
        ({"files": [FIRST, ("picture", ("b", PICTURE))]}, "file_missing", ""),
        ({"files": [FIRST, FIRST]}, "invalid_parameter", "more than one file for file"),
        ({"files": [FIRST, ("image_file", ("b", b"1"))]}, "invalid_parameter", "one file"),
        ({"files": [FIRST, *FIELDS]}, "invalid_parameter", "16"),
        ({"files": [SECOND]}, "file_missing", "the form has no file"),
        ({"files": [SECOND, ("bg_image_file", ("c", b"2"))]}, "file_missing", "has no file"),
        ({"files": [FIRST, SECOND, ("bg_image_file", ("c", b"2"))]}, "invalid_parameter", "two"),
        ({"files": [FIRST, ("bg_image", ("b", b""))]}, "file_missing", "bg_image: the picture has"),
        ({"files": [FIRST, ("bg_image", (None, b"secret"))]}, "file_missing", "holds text"),
        (multipart(b"--x\r\nsecret", ""), "invalid_parameter", ""),
        (multipart(CUT_OFF), "file_missing", ""),
    ],
)
def test_a_wrong_form_is_refused(
    server: FakeServer, sent: dict[str, Any], code: str, says: str
) -> None:
    """It has one file, possibly a second picture, and up to sixteen fields."""
    assert_refused(server.post("/segment?output=composite", **sent), 422, code, says)
    assert not server.plane.payloads


@pytest.mark.parametrize("field", ["bg_image", "bg_image_file"])
@pytest.mark.parametrize("form", ["", '; filename=""'], ids=["text", "file without a name"])
def test_a_second_picture_that_nobody_chose_is_none(
    server: FakeServer, field: str, form: str
) -> None:
    """A page sends its empty field along; browsers do it as a file without a name."""
    parts = [('name="file"; filename="a"', PICTURE), (f'name="{field}"{form}', b"")]
    body = b"".join(
        f"--x\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + content + b"\r\n"
        for head, content in parts
    )
    reply = server.post("/segment", **multipart(body + b"--x--\r\n"))
    assert reply.status_code == 200, reply.text
    assert server.plane.picture.background is None


@pytest.mark.parametrize("field", ["bg_image", "bg_image_file"])
def test_a_form_may_have_a_second_picture(server: FakeServer, field: str) -> None:
    files = [(field, ("b", b"second")), ("image_file", ("a", PICTURE))]
    response = server.post("/segment?output=composite", files=files)
    assert response.status_code == 200, response.text
    assert (server.plane.picture.body, server.plane.picture.background) == (PICTURE, b"second")


@pytest.mark.parametrize(
    "charset", ["punycode", "undefined", "idna", "utf-7", "base64", '""', "made-up"]
)
def test_a_form_in_an_unusual_charset_is_422(server: FakeServer, charset: str) -> None:
    """Python has codecs that fail in ways of their own, and keeps every name it is asked for."""
    before = len(encodings._cache)  # type: ignore[attr-defined]  # what grows
    field = b'--x\r\nContent-Disposition: form-data; name="output"\r\n\r\nma\xffsk\xc3\r\n--x--\r\n'
    form = multipart(field, f"boundary=x; charset={charset}")
    response = server.post("/segment", **form)
    assert_refused(response, 422, "invalid_parameter", "charset must be one of utf-8,")
    assert len(encodings._cache) == before  # type: ignore[attr-defined]


def test_a_large_file_is_never_written_to_disk(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight megabytes stay in memory: the server may run on a read-only disk."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a temporary file was made")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    body = bytes(8 << 20)
    assert server.post("/segment", files={"file": ("a", body)}).status_code == 200
    assert len(server.plane.picture.body) == len(body)


def test_the_client_declares_the_same_options(server: FakeServer) -> None:
    """Names, words and descriptions: its command line is made from them."""
    operation = server.client.get("/openapi.json").json()["paths"]["/segment"]["post"]
    types = {"string": str, "boolean": bool, "number": float, "integer": int}
    expected = {
        each["name"]: (
            each["schema"].get("enum") or types[each["schema"]["type"]],
            each["description"],
        )
        for each in operation["parameters"]
    }
    expected["predictor"] = (str, "Alias of `instance_group`.")
    form = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    about_background, _, _ = form["bg_image"]["description"].partition("; or ")
    expected["bg_image"] = (Source, f"{about_background}.")
    hints = get_type_hints(SegmentOptions, include_extras=True)
    declared = {name: get_args(hint) for name, hint in hints.items()}
    assert expected == {
        name: (list(get_args(kind)) if get_origin(kind) is Literal else kind, text)
        for name, (kind, text) in declared.items()
    }


@pytest.mark.parametrize("name", ["refine", "colours", "size"])
def test_the_page_offers_each_word_of_an_option(name: str) -> None:
    page = (STATIC / "demo" / "index.html").read_text("utf-8")
    [select] = re.findall(rf'<select id="{name}">(.*?)</select>', page, re.S)
    offered = set(re.findall(r'<option value="(\w+)"', select))
    schema = OPTIONS[name]
    assert offered == set(schema["enum"]) - {schema.get("default")}
