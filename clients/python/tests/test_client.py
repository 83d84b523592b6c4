"""What both clients send, and what they make of replies."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from paddlepool_client import AsyncClient, Client, Emotion, InvalidReply, Label, Model, OcrLine

Asking = Callable[..., Any]

CUTOUT_HEADERS = {
    "content-type": "image/png",
    "x-width": "5",
    "x-height": "4",
    "x-foreground-top": "1",
    "x-foreground-left": "2",
    "x-foreground-width": "3",
    "x-foreground-height": "4",
    "x-model": "u2netp@1",
    "x-predictor": "onednn",
    "x-request-id": "3057adea88f0e8c7",
    "server-timing": "decode;dur=1.5, infer;dur=200.25",
}
ORIGIN_HEADERS = {
    "x-predictor": "onednn",
    "x-request-id": "3057adea88f0e8c7",
    "server-timing": "infer;dur=20",
}
LABELS = {
    "labels": [{"label": "tench", "class_id": 0, "score": 0.75}],
    "width": 5,
    "height": 4,
    "model": "lcnet",
    "version": 2,
}
LINE = {"text": "合计 9.00", "score": 0.98, "box": [[1, 2], [9, 2], [9, 4], [1, 4]]}
PAGE = {"width": 5, "height": 4, "angle": 90, "lines": [LINE, LINE | {"text": "RM"}]}
EMOTIONS = [[{"label": "sad", "label_zh": "悲伤", "score": 0.75}]]
MODEL = {
    "name": "emotion",
    "version": 1,
    "state": "READY",
    "reason": None,
    "task": "sentiment",
    "labels": ["angry", "happy"],
    "predictors": [{"name": "onednn", "count": 2}, {"name": "native", "count": 1}],
}
UNREADABLE = {
    "name": "broken",
    "version": None,
    "state": "UNAVAILABLE",
    "reason": "no manifest",
    "task": None,
    "labels": None,
    "predictors": None,
}


def cutout() -> httpx.Response:
    return httpx.Response(200, headers=CUTOUT_HEADERS, content=b"a picture")


def test_segment_returns_the_picture_and_what_the_headers_say(asking: Asking) -> None:
    """The bytes as they came; sizes in pixels and times in milliseconds from the headers."""
    server = asking(cutout())
    result = server.segment(b"\xff\xd8", output="mask", crop=True, threshold=0.5)
    assert result.content == b"a picture"
    assert result.content_type == "image/png"
    assert result.size == (5, 4)
    assert result.foreground == (1, 2, 3, 4)
    assert (result.model, result.predictor) == ("u2netp@1", "onednn")
    assert result.request_id == "3057adea88f0e8c7"
    assert result.timings == {"decode": 1.5, "infer": 200.25}
    [request] = server.requests
    assert (request.method, request.url.path) == ("POST", "/segment")
    assert dict(request.url.params) == {"output": "mask", "crop": "true", "threshold": "0.5"}
    assert request.headers["content-type"] == "image/*"
    assert request.content == b"\xff\xd8"


def test_a_result_is_shown_and_saved(asking: Asking, tmp_path: Path) -> None:
    """Its repr is without its bytes; a notebook draws it."""
    result = asking(cutout()).segment(b"\xff\xd8")
    assert "a picture" not in repr(result)
    assert "size=(5, 4)" in repr(result)
    assert (result._repr_png_(), result._repr_jpeg_()) == (b"a picture", None)
    result.save(tmp_path / "cat.png")
    assert (tmp_path / "cat.png").read_bytes() == b"a picture"


SOURCES: dict[str, tuple[Callable[[Path], Any], bytes]] = {
    "the name of a file": (str, b"a file"),
    "a path": (Path, b"a file"),
    "an open file": (lambda path: io.BytesIO(b"a file"), b"a file"),
}


@pytest.mark.parametrize(("source", "sent"), SOURCES.values(), ids=SOURCES)
def test_paths_open_files_and_pictures_are_sources(
    asking: Asking, source: Callable[[Path], Any], sent: bytes, tmp_path: Path
) -> None:
    """Retries send the same bytes."""
    (tmp_path / "cat.jpg").write_bytes(b"a file")
    server = asking(httpx.Response(503, headers={"retry-after": "0"}), cutout())
    server.segment(source(tmp_path / "cat.jpg"))
    assert [request.content for request in server.requests] == [sent, sent]


@pytest.mark.parametrize(
    ("mode", "sent"),
    [
        ("RGBA", "RGBA"),
        ("YCbCr", "RGB"),
        ("PA", "RGBA"),
        ("I", "I;16"),
        ("I;16", "I;16"),
        ("I;16B", "I;16"),
    ],
)
def test_a_picture_of_pillow_is_sent_as_png(asking: Asking, mode: str, sent: str) -> None:
    server = asking(cutout())
    server.segment(
        Image.new("L", (3, 2), 200).convert("RGBA" if mode == "PA" else "L").convert(mode)
    )
    with Image.open(io.BytesIO(server.requests[0].content)) as received:
        assert (received.format, received.mode, received.size) == ("PNG", sent, (3, 2))


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "I"])
def test_sixteen_bits_are_sent_as_they_are(asking: Asking, mode: str) -> None:
    server, levels = asking(cutout()), [0, 255, 256, 30_000, 65_535]
    picture = Image.new("I", (5, 1))
    picture.putdata(levels)
    server.segment(picture.convert("I;16").convert("I").convert(mode) if mode != "I" else picture)
    with Image.open(io.BytesIO(server.requests[0].content)) as received:
        assert [received.getpixel((at, 0)) for at in range(5)] == levels


def test_a_profile_of_cmyk_is_sent_with_its_colours(asking: Asking) -> None:
    server, file = asking(cutout()), io.BytesIO()
    Image.new("CMYK", (3, 2), (9, 99, 199, 29)).save(file, "tiff", icc_profile=b"a profile")
    server.segment(Image.open(file))
    with Image.open(io.BytesIO(server.requests[0].content)) as received:
        assert (received.mode, received.getpixel((0, 0))) == ("CMYK", (9, 99, 199, 29))
        assert received.info["icc_profile"] == b"a profile"


def test_a_premultiplied_picture_is_sent_with_its_transparency(asking: Asking) -> None:
    server = asking(cutout())
    server.segment(Image.new("LA", (3, 2), (200, 100)).convert("La"))
    with Image.open(io.BytesIO(server.requests[0].content)) as received:
        assert (received.mode, received.getpixel((0, 0))[1]) == ("LA", 100)


def test_a_picture_of_pillow_is_sent_upright(asking: Asking) -> None:
    """A PNG file of it would not have its orientation."""
    server, file, exif = asking(cutout()), io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (3, 2)).save(file, "jpeg", exif=exif)
    server.segment(Image.open(file))
    assert Image.open(io.BytesIO(server.requests[0].content)).size == (2, 3)


def test_a_picture_of_unknown_range_is_rejected(asking: Asking) -> None:
    with pytest.raises(TypeError, match="mode F"):
        asking().segment(Image.new("F", (3, 2)))


@pytest.mark.parametrize(
    "source",
    [
        io.StringIO("text"),
        io.TextIOWrapper(io.BytesIO(b"\xff\xd8"), encoding="utf-8"),  # open() without "rb"
        bytearray(b"\xff\xd8"),
        memoryview(b"\xff\xd8"),
        7,
        None,
    ],
)
def test_what_is_no_picture_is_named(asking: Asking, source: Any) -> None:
    server = asking()
    for method in (server.segment, server.ocr):
        with pytest.raises(TypeError, match=f"binary mode.* received {type(source).__name__}"):
            method(source)


def test_an_unknown_option_is_named(asking: Asking) -> None:
    server = asking()
    with pytest.raises(TypeError, match=r"segment\(\) has no option 'colour', it has output, "):
        server.segment(b"", colour="red")
    with pytest.raises(TypeError, match=r"sentiment\(\) has no option 'topk', it has top_k, "):
        server.sentiment(["text"], topk=1)
    assert server.requests == []


def test_a_background_makes_it_a_form(asking: Asking, tmp_path: Path) -> None:
    """Two files under the names that the server has for them; the parameters stay in the query."""
    (tmp_path / "cat.jpg").write_bytes(b"a cat")
    server = asking(httpx.Response(503, headers={"retry-after": "0"}), cutout())
    server.segment(tmp_path / "cat.jpg", output="composite", bg_image=b"a beach", bg_fit="cover")
    first, second = server.requests
    assert dict(second.url.params) == {"output": "composite", "bg_fit": "cover"}
    assert second.headers["content-type"].startswith("multipart/form-data; boundary=")
    assert b'name="file"; filename="file"' in second.content
    assert b'name="bg_image"; filename="bg_image"' in second.content
    assert second.content.count(b"a cat") == second.content.count(b"a beach") == 1
    assert first.content == second.content


def test_sentiment_returns_typed_emotions(asking: Asking) -> None:
    server = asking(httpx.Response(200, json=EMOTIONS))
    assert server.sentiment(["难过"], top_k=1) == [[Emotion("sad", "悲伤", 0.75)]]
    [request] = server.requests
    assert (request.method, request.url.path) == ("POST", "/sentiment")
    assert json.loads(request.content) == {"inputs": ["难过"], "parameters": {"top_k": 1}}


@pytest.mark.parametrize(("texts", "but"), [("难过", "not one text"), (None, "received NoneType")])
def test_what_is_no_list_of_texts_is_a_type_error(asking: Asking, texts: Any, but: str) -> None:
    """A string is a sequence of characters and would be classified one by one."""
    with pytest.raises(TypeError, match=f"a list of texts, {but}"):
        asking().sentiment(texts)


def test_half_a_character_reaches_the_server_as_json_has_it(asking: Asking) -> None:
    """A lone surrogate, as a broken file has it, is escaped; the server says what is wrong."""
    server = asking(httpx.Response(200, json=EMOTIONS))
    server.sentiment(["好\udfff"])
    [request] = server.requests
    assert request.content.startswith('{"inputs": ["好\\udfff"]'.encode())
    assert request.headers["content-type"] == "application/json"


def test_classify_returns_labels_and_where_they_come_from(asking: Asking) -> None:
    server = asking(httpx.Response(200, json=LABELS, headers=ORIGIN_HEADERS))
    result = server.classify(b"\xff\xd8", top=1, model="lcnet")
    assert result.labels == (Label("tench", 0, 0.75),)
    assert (result.size, result.model, result.predictor) == ((5, 4), "lcnet@2", "onednn")
    assert result.request_id == "3057adea88f0e8c7"
    assert result.timings == {"infer": 20.0}
    [request] = server.requests
    assert (request.method, request.url.path) == ("POST", "/classify")
    assert dict(request.url.params) == {"top": "1", "model": "lcnet"}
    assert request.headers["content-type"] == "image/*"
    assert request.content == b"\xff\xd8"


def pages(count: int) -> httpx.Response:
    body = {"pages": [PAGE] * count, "model": "ocr", "version": 1}
    return httpx.Response(200, json=body, headers=ORIGIN_HEADERS)


def test_ocr_returns_pages_of_lines_and_their_text(asking: Asking) -> None:
    server = asking(pages(1))
    result = server.ocr(b"\xff\xd8", min_score=0.5, orientation=True)
    [page] = result.pages
    assert (page.size, page.angle) == ((5, 4), 90)
    assert page.lines[0] == OcrLine("合计 9.00", 0.98, ((1, 2), (9, 2), (9, 4), (1, 4)))
    assert page.text == result.text == "合计 9.00\nRM"
    assert (result.model, result.predictor) == ("ocr@1", "onednn")
    [request] = server.requests
    assert request.url.path == "/ocr"
    assert dict(request.url.params) == {"min_score": "0.5", "orientation": "true"}
    assert request.content == b"\xff\xd8"


@pytest.mark.parametrize("kind", [list, tuple])
def test_ocr_sends_several_pictures_in_one_form(
    asking: Asking, kind: Callable[..., Any], tmp_path: Path
) -> None:
    """In their order, also when it is sent again."""
    (tmp_path / "a.jpg").write_bytes(b"a page")
    server = asking(httpx.Response(503, headers={"retry-after": "0"}), pages(3))
    result = server.ocr(kind([tmp_path / "a.jpg", b"page b"]))
    assert result.text == "\n\n".join(["合计 9.00\nRM"] * 3)
    first, second = server.requests
    assert first.content == second.content
    assert second.content.count(b'name="file"; filename="file"') == 2
    assert 0 < second.content.index(b"a page") < second.content.index(b"page b")


def test_ocr_of_no_picture_and_of_too_few_pages(asking: Asking) -> None:
    with pytest.raises(TypeError, match="at least one picture"):
        asking().ocr([])
    with pytest.raises(InvalidReply, match="1 pages of 2 pictures"):
        asking(pages(1)).ocr([b"a", b"b"])


def test_models_are_values_and_info_is_what_the_server_says(asking: Asking) -> None:
    """What is not known of a model that is not ready is None."""
    server = asking(*(httpx.Response(200, json={"models": [MODEL, UNREADABLE]}) for _ in "ab"))
    values = MODEL | {"labels": ("angry", "happy"), "predictors": ("onednn", "native")}
    assert server.models() == [Model(**values), Model(**UNREADABLE)]
    assert server.info()["models"][0] == MODEL


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (None, "/v2/health/ready"),
        ("emotion", "/v2/models/emotion/ready"),
        ("emotion@2", "/v2/models/emotion/versions/2/ready"),
        ("a/b", "/v2/models/a%2Fb/ready"),
        ("\ud800", "/v2/models/%ED%A0%80/ready"),
    ],
    ids=["all", "model", "version", "odd name", "half a character"],
)
def test_ready_asks_once_and_a_503_is_an_answer(
    asking: Asking, model: str | None, path: str
) -> None:
    """Whoever asks whether it is ready does not want to be kept waiting until it is."""
    yes = httpx.Response(200, json={"ready": True})
    server = asking(yes, *(httpx.Response(status) for status in (503, 404)))
    assert server.ready(model) is True
    assert server.ready(model) is False
    if model is not None:  # which is not there
        assert server.ready(model) is False
    assert {request.url.raw_path.decode() for request in server.requests} == {path}
    assert server.slept == []


@pytest.mark.parametrize(
    ("body", "methods"),
    [
        ("<html>", ("segment", "sentiment", "classify", "ocr", "models", "info", "ready")),
        ("[1]", ("segment", "sentiment", "classify", "ocr", "models", "info", "ready")),
        ("[]", ("segment", "sentiment", "classify", "ocr", "models", "info", "ready")),
        ("{}", ("segment", "sentiment", "classify", "ocr", "models", "ready")),
        ('{"models": [{}]}', ("segment", "sentiment", "classify", "ocr", "models")),
    ],
)
def test_a_reply_of_something_else_says_so(
    asking: Asking, body: str, methods: tuple[str, ...]
) -> None:
    """A proxy's page, or another service at this address."""
    arguments: dict[str, tuple[Any, ...]] = {
        "segment": (b"",),
        "sentiment": (["x"],),
        "classify": (b"",),
        "ocr": (b"",),
    }
    for method in methods:
        server = asking(httpx.Response(200, text=body))
        with pytest.raises(InvalidReply, match=r"http://server/.*no reply of Paddlepool"):
            getattr(server, method)(*arguments.get(method, ()))


def test_the_key_and_the_prefix_go_with_every_request(asking: Asking) -> None:
    """In UTF-8, as the server reads it; a server behind a proxy may live below a path."""
    server = asking(cutout(), url="https://host/pool", api_key="schlüssel-钥匙")
    server.segment(b"")
    [request] = server.requests
    raw = dict(request.headers.raw)
    assert raw[b"authorization"].decode() == "Bearer schlüssel-钥匙"
    assert str(request.url) == "https://host/pool/segment"


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("key", ["geheim\n", "schl\udcc3ssel"])
def test_a_key_that_no_header_carries_is_refused_without_being_repeated(
    client: type, key: str
) -> None:
    """The message may go to a log."""
    with pytest.raises(ValueError, match="in an HTTP header") as refused:
        client(api_key=key)
    assert key not in str(refused.value)


class ReadyHandler(BaseHTTPRequestHandler):
    """Answers that it is ready, whatever is asked."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b'{"ready": true}')

    def log_message(self, *args: Any) -> None:
        del args


PROXIES: dict[str, dict[str, str]] = {
    "a proxy": {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "http://127.0.0.1:9"},
    "socks without its package": {"ALL_PROXY": "socks5://127.0.0.1:9"},
    "brackets": {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "[::1]"},
}


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("variables", PROXIES.values(), ids=PROXIES)
def test_no_proxy_is_asked_for_this_machine(
    variables: dict[str, str], awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would ask its own machine; whatever the variables say, they are not read."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with HTTPServer(("127.0.0.1", 0), ReadyHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for host in ("127.0.0.1", "localhost"):
            url = f"http://{host}:{server.server_port}"
            client = AsyncClient(url) if awaited else Client(url)
            reply = client.ready()
            assert asyncio.run(reply) if asyncio.iscoroutine(reply) else reply
        server.shutdown()


@pytest.mark.parametrize("client", [Client, AsyncClient])
@pytest.mark.parametrize("name", ["socks without its package", "brackets"])
def test_proxy_variables_that_cannot_be_used_are_named(
    client: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in PROXIES[name].items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=r"^one of HTTP_PROXY, .* cannot be used: "):
        client("http://server")


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_the_timeout_is_in_seconds_and_has_a_default(client: type) -> None:
    """Nobody waits for ever for a server that has gone silent."""
    seen: list[dict[str, float]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200, json={})

    for settings in ({}, {"timeout": 2.5}):
        connected = client("http://server", transport=httpx.MockTransport(handle), **settings)
        if isinstance(connected, AsyncClient):
            asyncio.run(connected.info())
        else:
            with connected:
                connected.info()
    steps = ("connect", "read", "write", "pool")
    assert seen == [dict.fromkeys(steps, 60.0), dict.fromkeys(steps, 2.5)]


def test_a_file_does_not_hold_up_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read in a thread of its own."""
    readers: list[threading.Thread] = []

    def read(path: Path) -> bytes:
        readers.append(threading.current_thread())
        return b""

    monkeypatch.setattr(Path, "read_bytes", read)

    async def scenario() -> None:
        transport = httpx.MockTransport(lambda request: cutout())
        async with AsyncClient(transport=transport) as client:
            await client.segment("cat.jpg")

    asyncio.run(scenario())
    assert readers != []
    assert threading.main_thread() not in readers


def test_both_clients_have_the_same_methods() -> None:
    """With the same parameters; closing alone has two names."""

    def methods(client: type) -> dict[str, inspect.Signature]:
        return {
            name: inspect.signature(value).replace(return_annotation=None)
            for name, value in vars(client).items()
            if not name.startswith("_") and name not in ("close", "aclose")
        }

    assert methods(AsyncClient) == methods(Client)
