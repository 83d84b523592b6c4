"""`paddlepool ocr`: text, JSON and pages whose text can be searched."""

from __future__ import annotations

import argparse
import base64
import io
import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from paddlepool_client import Client, OcrLine, OcrPage
from paddlepool_client.commands import ocr
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.commands.overlay import overlay

LEVEL = {"text": "TOTAL <9.00>", "score": 0.98, "box": [[10, 20], [110, 20], [110, 40], [10, 40]]}
UPRIGHT = {"text": "竖排", "score": 0.5, "box": [[150, 10], [170, 10], [170, 90], [150, 90]]}
PNG = b"\x89PNG\r\n\x1a\n picture"


class Server:
    """Answers every picture with the same page."""

    def __init__(self, status: int = 200) -> None:
        self._status = status
        self.queries: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"ready": True})
        assert request.url.path == "/ocr"
        self.queries.append(dict(request.url.params))
        page = {"width": 200, "height": 100, "angle": 0, "lines": [LEVEL, UPRIGHT]}
        body = {"pages": [page], "model": "ocr", "version": 1}
        return httpx.Response(self._status, json=body, headers={"x-predictor": "auto"})

    def ocr(self, *arguments: object) -> int:
        parser = argparse.ArgumentParser()
        ocr.configure(parser)
        connect = partial(Client, transport=httpx.MockTransport(self))
        return ocr.run(parser.parse_args([*map(str, arguments)]), connect=connect)


class Elements(HTMLParser):
    """The elements of a page by tag, as (attributes, text)."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: dict[str, list[tuple[dict[str, Any], str]]] = {}
        self._last = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._last = tag
        self.found.setdefault(tag, []).append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self._last:
            attributes, text = self.found[self._last][-1]
            self.found[self._last][-1] = (attributes, text + data)

    def handle_endtag(self, tag: str) -> None:
        self._last = ""


def pictures(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PNG)
    return directory


def test_the_text_of_one_picture_is_printed(
    tmp_path: Path,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on a terminal, where `segment` refuses to write."""
    page = pictures(tmp_path, "page.png") / "page.png"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    server = Server()
    assert server.ocr(page, "--min-score", 0.5, "--limit", 960, "--orientation") == 0
    assert capfdbinary.readouterr().out.decode() == "TOTAL <9.00>\n竖排\n"
    assert server.queries == [{"min_score": "0.5", "limit": "960", "orientation": "true"}]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(PNG)))
    assert server.ocr("-", "--format", "json") == 0
    [shown] = json.loads(capfdbinary.readouterr().out)["pages"]
    assert shown == {"width": 200, "height": 100, "angle": 0, "lines": [LEVEL, UPRIGHT]}


@pytest.mark.parametrize(("form", "suffix"), [("text", "txt"), ("json", "json")])
def test_a_directory_gets_a_file_for_each_picture(form: str, suffix: str, tmp_path: Path) -> None:
    """The second run has nothing to do; another format needs another directory."""
    folder, out = pictures(tmp_path / "in", "a.png", "sub/b.tif"), tmp_path / "out"
    server = Server()
    assert server.ocr(folder, "-o", out, "--format", form) == 0
    assert (out / f"a.png.{suffix}").read_text("utf-8").strip()
    assert (out / f"sub/b.tif.{suffix}").exists()
    assert server.ocr(folder, "-o", out, "--format", form) == 0
    assert len(server.queries) == 2
    with pytest.raises(CommandError, match=rf'"format": "{form}".*"format": "overlay"'):
        server.ocr(folder, "-o", out, "--format", "overlay")


def test_an_overlay_has_the_picture_and_its_text_in_place(tmp_path: Path) -> None:
    """Text in level boxes starts at their lower left corner; in upright ones it runs down."""
    page = pictures(tmp_path, "a & b.png") / "a & b.png"
    assert Server().ocr(page, "--format", "overlay") == 0
    found = Elements((tmp_path / "a & b.ocr.html").read_bytes()).found
    assert found["title"] == [({}, "a & b.png")]
    assert found["svg"][0][0]["viewbox"] == "0 0 200 100"
    image = found["image"][0][0]
    assert image["href"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert (image["width"], image["height"], image["transform"]) == ("200", "100", "")
    (level, words), (upright, others) = found["text"]
    assert (words, others) == ("TOTAL <9.00>", "竖排")
    assert level["transform"] == "translate(10 40) rotate(0.00)"
    assert (level["textlength"], level["font-size"], level["y"]) == ("100.0", "20.0", "-4.0")
    assert upright["transform"] == "translate(150 10) rotate(90.00)"
    assert (upright["textlength"], upright["font-size"]) == ("80.0", "20.0")


@pytest.mark.parametrize("angle", [0, 90, 180, 270])
def test_a_turned_page_turns_its_picture(angle: int) -> None:
    """The picture's corners are mapped to the page's, the top left one turned anticlockwise."""
    width, height = 200, 100
    page = OcrPage(size=(width, height), angle=angle, lines=())
    image = Elements(overlay(PNG, page, title="")).found["image"][0][0]
    numbers = [float(number) for number in re.findall(r"-?\d+", image["transform"])]
    a, b, c, d, e, f = numbers or (1, 0, 0, 1, 0, 0)
    sides = float(image["width"]), float(image["height"])
    placed = [
        (a * x * sides[0] + c * y * sides[1] + e, b * x * sides[0] + d * y * sides[1] + f)
        for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))
    ]
    corners = [(0, 0), (width, 0), (width, height), (0, height)]
    turns = angle // 90
    assert placed == corners[4 - turns :] + corners[: 4 - turns]


def test_what_browsers_do_not_show_is_not_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(tmp_path / "in", "a.png", "b.tif")
    (folder / "b.tif").write_bytes(b"II*\0 a scan")
    server = Server()
    assert server.ocr(folder, "-o", tmp_path / "out", "--format", "overlay") == 1
    assert len(server.queries) == 1
    assert "b.tif: browsers do not show this format, only jpeg, png" in capsys.readouterr().err


def test_an_overlay_is_written_even_for_a_name_that_is_no_text() -> None:
    page = OcrPage(size=(1, 1), angle=0, lines=(OcrLine("", 0.1, ((0, 0),) * 4),))
    found = Elements(overlay(PNG, page, title="a\udcff.png")).found
    assert found["title"][0][1] == "a?.png"
    assert "text" not in found  # an empty line
