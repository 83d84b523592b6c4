"""/v1.0/removebg and /v1.0/account: remove.bg's fields, headers and errors."""

import base64
import json
from typing import Any

import pytest

from paddlepool.compat.removebg import FIELDS, SCHEMA, UNLIMITED_CALLS
from paddlepool.contracts.errors import (
    FileMissing,
    FileTooLarge,
    ImageUnreadable,
    PaddlepoolError,
    ResolutionTooHigh,
    UnsupportedMediaType,
)
from paddlepool.tasks.segment.request import ForegroundBox
from tests.compat.fakes import IN_BASE64, PICTURE, FakeServer

PATH = "/v1.0/removebg"
JSON = {"accept": "application/json"}


def refusal(response: Any, status: int = 400) -> dict[str, str]:
    assert response.status_code == status, response.text
    [error] = response.json()["errors"]
    assert set(error) == {"title", "code", "detail"}
    return dict(error)


def test_a_form_with_a_file(server: FakeServer) -> None:
    response = server.form(PATH, "image_file")
    assert (response.status_code, response.content) == (200, b"encoded")
    described = {name: response.headers[f"x-{name}"] for name in ("width", "height", "type")}
    assert described == {"width": "3", "height": "2", "type": "other"}
    assert response.headers["x-credits-charged"] == "0"
    assert response.headers["x-foreground-left"] == "2"
    sent = server.plane.picture
    assert sent.body == PICTURE
    assert (sent.output, sent.format, sent.size) == ("cutout", "png", "preview")


def test_a_form_may_send_every_field_empty(server: FakeServer) -> None:
    files = dict.fromkeys(SCHEMA["properties"], (None, "")) | {"image_file": ("a.jpg", PICTURE)}
    assert server.post(PATH, files=files).status_code == 200


@pytest.mark.parametrize("kind", ["form", "urlencoded", "broken lines", "json", "data address"])
def test_a_picture_in_base64(server: FakeServer, kind: str) -> None:
    fields = {"image_file_b64": IN_BASE64, "size": "full", "crop": "true"}
    if kind == "form":
        files = [(name, (None, value)) for name, value in fields.items()]
        response = server.post(PATH, files=files)
    elif kind == "json":
        response = server.post(PATH, json=fields | {"crop": True, "roi": None, "scale": ""})
    else:
        broken = base64.encodebytes(PICTURE * 40).decode()
        encodings = {"broken lines": broken, "data address": f"data:image/jpeg;base64,{IN_BASE64}"}
        text = encodings.get(kind, IN_BASE64)
        response = server.post(PATH, data=fields | {"image_file_b64": text})
    assert response.status_code == 200, response.text
    sent = server.plane.picture
    assert sent.body == PICTURE * (40 if kind == "broken lines" else 1)
    assert (sent.size, sent.crop) == ("full", True)


def test_a_plus_sign_that_is_not_quoted_is_no_space(server: FakeServer) -> None:
    """As clients send it that put base64 into a form as it is."""
    text = base64.b64encode(b"\xfb\xef\xbe" * 9).decode()
    assert "+" in text
    body = f"size=auto&image_file_b64={text}".encode()
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert server.post(PATH, content=body, headers=kind).status_code == 200
    assert server.plane.picture.body == b"\xfb\xef\xbe" * 9


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"size": "regular"}, {"size": "preview"}),
        ({"size": "4k"}, {"size": "full"}),
        ({"size": "50MP"}, {"size": "full"}),
        ({"format": "jpg"}, {"output": "composite", "format": "jpg"}),
        ({"channels": "alpha"}, {"output": "mask", "format": "png"}),
        ({"bg_color": "81d4fa"}, {"bg_color": (129, 212, 250, 255), "format": "jpg"}),
        ({"bg_color": "81d4fa77"}, {"bg_color": (129, 212, 250, 119), "format": "png"}),
        ({"bg_color": "red", "format": "png"}, {"bg_color": (255, 0, 0, 255), "format": "png"}),
        (
            {"crop": "true", "crop_margin": "30px 10%", "scale": "80%", "position": "20% 100%"},
            {
                "crop": True,
                "crop_margin": ((30, "px"), (10, "%"), (30, "px"), (10, "%")),
                "scale": 80,
                "position": (20, 100),
            },
        ),
        ({"add_shadow": "True"}, {"shadow": "drop", "shadow_opacity": 50}),
        ({"shadow_type": "drop", "shadow_opacity": "20"}, {"shadow_opacity": 20}),
        ({"shadow_type": "drop", "shadow_opacity": "0"}, {"shadow": "none"}),
        ({"type": "car", "semitransparency": "false"}, {"output": "cutout"}),
        ({"crop": "true", "crop_margin": "0"}, {"crop": True, "crop_margin": ((0, "px"),) * 4}),
        ({"roi": "0% 0% 100% 100%", "unheard_of": "1"}, {"output": "cutout"}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_fields(server: FakeServer, fields: dict[str, str], expected: dict[str, object]) -> None:
    response = server.form(PATH, "image_file", fields)
    assert response.status_code == 200, response.text
    sent = server.plane.picture
    assert {name: getattr(sent, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"image_url": "http://a.example/x.jpg"}, "image_url"),
        ({"bg_image_url": "http://a.example/x.jpg"}, "bg_image_url"),
        ({"format": "zip"}, "format"),
        ({"format": "jpg", "channels": "alpha"}, "format"),
        ({"size": "huge"}, "size"),
        ({"crop": "perhaps"}, "crop"),
        ({"crop": "true", "crop_margin": "a lot"}, "crop_margin"),
        ({"scale": "9%"}, "scale"),
        ({"roi": "10% 10% 90% 90%"}, "roi"),
        ({"bg_color": "nocolour"}, "bg_color"),
        ({"shadow_type": "3D"}, "shadow_type"),
        ({"add_shadow": "1", "shadow_opacity": "101"}, "shadow_opacity"),
        ({"image_file_b64": IN_BASE64}, "image_file_b64"),
        ({"image_file": "text"}, "image_file"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_offered_is_refused_by_name(
    server: FakeServer, fields: dict[str, str], name: str
) -> None:
    error = refusal(server.form(PATH, "image_file", fields))
    assert error["code"] == (f"invalid_{name}" if name in FIELDS else "invalid_parameter")
    assert error["detail"].startswith(name)
    assert not server.plane.payloads


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ImageUnreadable("cut off"), "failed_to_read_image"),
        (UnsupportedMediaType("no picture"), "invalid_file_type"),
        (ResolutionTooHigh("60 megapixels"), "resolution_too_high"),
        (FileTooLarge("13 MB"), "file_too_large"),
        (FileMissing("none"), "missing_source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_with_a_picture_has_remove_bgs_code(
    server: FakeServer, error: PaddlepoolError, code: str
) -> None:
    server.plane.error = error
    assert refusal(server.form(PATH, "image_file"))["code"] == code


def test_a_background_picture(server: FakeServer) -> None:
    files = {"image_file": ("a", PICTURE), "bg_image_file": ("b", b"background")}
    assert server.post(PATH, files=files).status_code == 200
    sent = server.plane.picture
    assert (sent.output, sent.background, sent.format) == ("composite", b"background", "jpg")
    error = refusal(server.post(PATH, files=files, data={"bg_color": "fff"}))
    assert error["detail"].startswith("bg_color")


@pytest.mark.parametrize("level", ["none", "1"])
def test_the_type_is_told_unless_it_is_not_wanted(server: FakeServer, level: str) -> None:
    response = server.form(PATH, "image_file", {"type_level": level})
    assert ("x-type" in response.headers) == (level != "none")


def test_as_json(server: FakeServer) -> None:
    data = server.form(PATH, "image_file", headers=JSON).json()["data"]
    assert base64.b64decode(data["result_b64"]) == b"encoded"
    places = {side: data[f"foreground_{side}"] for side in ("top", "left", "width", "height")}
    assert places == {"top": 1, "left": 2, "width": 3, "height": 4}


def test_without_a_foreground(server: FakeServer) -> None:
    server.plane.box = ForegroundBox(top=0, left=0, width=0, height=0)
    assert refusal(server.form(PATH, "image_file"))["code"] == "unknown_foreground"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"size=auto", "application/x-www-form-urlencoded"),
        (b"size=" + b"a" * 9_999, "application/x-www-form-urlencoded"),
        (b"picture", "image/jpeg"),
        (b"image_file_b64=" + b"%41" * 1_000, "application/x-www-form-urlencoded"),
        (json.dumps({"image_file_b64": "a", "size": {}}).encode(), "application/json"),
        (json.dumps({"image_file_b64": "http://a.example"}).encode(), "application/json"),
    ],
)
def test_bodies_that_cannot_be_read(server: FakeServer, body: bytes, kind: str) -> None:
    refusal(server.post(PATH, content=body, headers={"content-type": kind}))
    assert not server.plane.payloads


@pytest.mark.parametrize(("quota", "calls"), [(0, UNLIMITED_CALLS), (30, 30)])
def test_the_account_has_nothing_to_pay(quota: int, calls: int) -> None:
    """Clients look whether calls are left."""
    reply = FakeServer(quota_requests_per_minute=quota).client.get("/v1.0/account")
    attributes = reply.json()["data"]["attributes"]
    assert attributes["credits"]["total"] == 0
    assert attributes["api"] == {"free_calls": calls, "sizes": "all"}
