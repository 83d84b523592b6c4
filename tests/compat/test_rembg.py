"""/api/remove: rembg's fields as the task's, and FastAPI's errors."""

import re
from typing import Any

import pytest

from tests.compat.fakes import PICTURE, FakeServer
from tests.e2e.process import ROOT

PATH = "/api/remove"


def faults_of(response: Any) -> list[tuple[list[str], str]]:
    assert response.status_code == 422, response.text
    return [(fault["loc"], fault["msg"]) for fault in response.json()["detail"]]


def test_by_default_the_mask_is_as_it_is_and_so_are_the_colours(server: FakeServer) -> None:
    response = server.form(PATH, "file")
    assert (response.status_code, response.content) == (200, b"encoded")
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-model"] == "u2netp@2"
    request = server.plane.picture
    assert request.body == PICTURE
    assert (request.output, request.format, request.size) == ("cutout", "png", "full")
    assert (request.refine, request.colours, request.threshold) == ("none", "original", None)


@pytest.mark.parametrize(
    ("fields", "query", "expected"),
    [
        ({"a": "true"}, "", {"refine": "guided"}),
        ({"a": "1", "af": "240", "ab": "10", "ae": "10"}, "", {"refine": "guided"}),
        ({"af": "100", "ab": "0", "ae": "500"}, "", {"refine": "none"}),
        ({"om": "true"}, "?bgc=1,2,3,4", {"output": "mask"}),
        ({"ppm": "on"}, "", {"threshold": 0.5}),
        ({"dc": "Yes"}, "", {"colours": "estimated"}),
        ({"vm": "false"}, "?extras={}", {"output": "cutout"}),
        ({}, "?bgc=255,0,16,128", {"output": "composite", "bg_color": (255, 0, 16, 128)}),
        ({"unheard_of": "1", "dc": ""}, "", {"colours": "original"}),
    ],
    ids=["a", "defaults", "unused", "om", "ppm", "dc", "vm", "bgc", "unknown"],
)
def test_fields(
    server: FakeServer, fields: dict[str, str], query: str, expected: dict[str, object]
) -> None:
    response = server.form(PATH + query, "file", fields)
    assert response.status_code == 200, response.text
    request = server.plane.picture
    assert {name: getattr(request, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("fields", "query", "place"),
    [
        ({"a": "perhaps"}, "", ["body", "a"]),
        ({"a": "true", "af": "200"}, "", ["body", "af"]),
        ({"ab": "256"}, "", ["body", "ab"]),
        ({"ae": "-1"}, "", ["body", "ae"]),
        ({"vm": "true"}, "", ["body", "vm"]),
        ({}, '?extras={"model_path":"x"}', ["body", "extras"]),
        ({}, "?bgc=1,2,3", ["query", "bgc"]),
        ({}, "?bgc=1,2,3,256", ["query", "bgc"]),
    ],
)
def test_what_is_not_offered_is_refused_by_name(
    server: FakeServer, fields: dict[str, str], query: str, place: list[str]
) -> None:
    [(location, _)] = faults_of(server.form(PATH + query, "file", fields))
    assert location == place
    assert not server.plane.payloads


def test_nothing_is_fetched_by_address(server: FakeServer) -> None:
    [(place, why)] = faults_of(server.client.get(f"{PATH}?url=http://127.0.0.1/x.png"))
    assert place == ["query", "url"]
    assert "not fetched by URL" in why


@pytest.mark.parametrize("fields", [{}, {"file": "text"}], ids=["none", "text"])
def test_without_a_picture(server: FakeServer, fields: dict[str, str]) -> None:
    files = [("other", ("a", b"b"))]
    [(_, why)] = faults_of(server.post(PATH, files=files, data=fields))
    assert "curl -F file=@photo.jpg" in why


def test_pages_of_another_origin_need_the_setting_that_the_guide_names(server: FakeServer) -> None:
    """rembg answers them all; a browser tells a page that is refused nothing."""
    guide = (ROOT / "docs" / "coming-from.md").read_text("utf-8")
    origin = re.search(r"PADDLEPOOL_CORS_ORIGINS=(https://[a-z.]+)", guide)
    assert origin is not None
    page = {"origin": origin[1], "sec-fetch-site": "cross-site"}
    assert server.form(PATH, "file", headers=page).status_code == 403
    allowing = FakeServer(cors_origins=(origin[1],)).form(PATH, "file", headers=page)
    assert allowing.headers["access-control-allow-origin"] == origin[1]
