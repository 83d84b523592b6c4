"""`paddlepool classify`: what it prints and writes, and how it continues."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from paddlepool_client import Client
from paddlepool_client.commands import classify
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.commands.main import main

LABELS = [
    {"label": "tabby, cat", "class_id": 281, "score": 0.75},
    {"label": "虎", "class_id": 292, "score": 0.25},
]
BAD = b"no picture"


class Server:
    """Answers a picture with LABELS, its content as the first; `before` may answer instead."""

    def __init__(
        self, before: Callable[[int], httpx.Response | None] = lambda number: None
    ) -> None:
        self._before = before
        self._lock = threading.Lock()
        self.queries: list[dict[str, str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"ready": True})
        assert request.url.path == "/classify"
        with self._lock:
            self.queries.append(dict(request.url.params))
            number = len(self.queries)
        if reply := self._before(number):
            return reply
        if request.content == BAD:
            detail = "the file is in no format"
            body = {"code": "unsupported_media_type", "detail": detail}
            return httpx.Response(415, json=body)
        first = LABELS[0] | {"label": f"of {request.content.decode()}"}
        labels = [first, LABELS[1]][: int(request.url.params.get("top", 5))]
        body = {"labels": labels, "width": 4, "height": 3, "model": "lcnet", "version": 1}
        return httpx.Response(200, json=body, headers={"x-predictor": "onednn"})

    def classify(self, *arguments: object) -> int:
        parser = argparse.ArgumentParser()
        classify.configure(parser)
        connect = partial(Client, transport=httpx.MockTransport(self))
        return classify.run(parser.parse_args([*map(str, arguments)]), connect=connect)


def photos(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(path.name.encode())
    return directory


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))


def test_one_picture_is_shown_with_bars_and_several_with_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos(tmp_path, "a.jpg", "b.jpg")
    server = Server()
    assert server.classify(tmp_path / "a.jpg") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"of a.jpg   75.0%  {'█' * 18}"
    assert second == f"虎          25.0%  {'█' * 6}"
    assert server.classify(tmp_path / "a.jpg", tmp_path / "b.jpg", "--timeout-ms", 900) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"of {name}   75.0%  {tmp_path / name}" for name in ("a.jpg", "b.jpg")
    ]
    assert server.queries == [{}, *[{"top": "1", "timeout_ms": "900"}] * 2]


def test_labels_as_json_are_a_line_for_each_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, "a.jpg", "b.jpg")
    assert Server().classify(tmp_path / "b.jpg", tmp_path / "a.jpg", "--json", "--top", 2) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["picture"] for line in lines] == [str(tmp_path / n) for n in ("b.jpg", "a.jpg")]
    labels = [LABELS[0] | {"label": "of b.jpg"}, LABELS[1]]
    assert lines[0]["labels"] == labels
    assert (lines[0]["width"], lines[0]["height"], lines[0]["model"]) == (4, 3, "lcnet@1")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"it")))
    assert Server().classify("-", "--json") == 0
    assert json.loads(capsys.readouterr().out)["labels"][0]["label"] == "of it"


def test_a_directory_becomes_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order of names, with a row for each label and for what was rejected."""
    folder = photos(tmp_path / "in", "b.jpg", "sub/a.png", "a.jpg", "notes.txt")
    (folder / "a.jpg").write_bytes(BAD)
    table = tmp_path / "labels.csv"
    assert Server().classify(folder, "-o", table, "--top", 2) == 1
    output = capsys.readouterr()
    assert f"2 of 3 pictures classified in {table}" in output.out
    assert "a.jpg: 415 unsupported_media_type" in output.err
    found = rows(table)
    assert [row["picture"] for row in found] == ["a.jpg", *["b.jpg"] * 2, *["sub/a.png"] * 2]
    assert found[0]["error"] == "415 unsupported_media_type: the file is in no format"
    assert [row["label"] for row in found] == ["", "of b.jpg", "虎", "of a.png", "虎"]
    assert (found[1]["class_id"], found[1]["score"], found[1]["error"]) == ("281", "0.75", "")
    lines = tmp_path / "labels.jsonl"
    assert Server().classify(folder, "-o", lines) == 1
    records = [json.loads(line) for line in lines.read_text("utf-8").splitlines()]
    assert [record["picture"] for record in records] == ["a.jpg", "b.jpg", "sub/a.png"]
    assert records[1]["labels"] == [LABELS[0] | {"label": "of b.jpg"}]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "labels.csv", "labels.jsonl"]


def interrupted() -> httpx.Response:
    os.kill(os.getpid(), signal.SIGINT)
    return httpx.Response(503, headers={"retry-after": "30"})


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("fault", "code"),
    [(interrupted, 130), (lambda: httpx.Response(500, json={"code": "internal_error"}), 1)],
    ids=["Ctrl-C", "a failure"],
)
def test_the_next_run_sends_only_what_is_missing(
    fault: Callable[[], httpx.Response],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half a line, as a power cut leaves it, counts as missing."""
    folder = photos(tmp_path / "in", *(f"{number:02}.jpg" for number in range(40)))
    table, part = tmp_path / "labels.csv", tmp_path / "labels.csv.part"
    table.write_text("labels of yesterday", "utf-8")
    server = Server(lambda number: fault() if number == 3 else None)
    assert server.classify(folder, "-o", table, "--jobs", 1) == code
    assert table.read_text("utf-8") == "labels of yesterday"
    done = len(part.read_text("utf-8").splitlines()) - 1
    message = f"{done} of 40 pictures are in {part}; run the same command again to continue"
    assert message in capsys.readouterr().err
    part.write_bytes(part.read_bytes()[:-5])
    again = Server()
    assert again.classify(folder, "-o", table) == 0
    assert len(again.queries) == 40 - done + 1
    assert [row["label"] for row in rows(table)] == [f"of {number:02}.jpg" for number in range(40)]
    assert not part.exists()


def test_labels_of_other_options_are_not_continued(tmp_path: Path) -> None:
    folder = photos(tmp_path / "in", "a.jpg", "b.jpg")
    table, part = tmp_path / "labels.csv", tmp_path / "labels.csv.part"
    server = Server(lambda number: httpx.Response(500) if number == 2 else None)
    assert server.classify(folder, "-o", table, "--jobs", 1) == 1
    with pytest.raises(CommandError, match=r'other options: \{"top": 1\}.*now: \{"top": 2\}'):
        server.classify(folder, "-o", table, "--top", 2)
    part.write_text('{"top": 1}\n[]\n', "utf-8")
    with pytest.raises(CommandError, match=r"labels\.csv\.part is damaged"):
        server.classify(folder, "-o", table)
    assert len(server.queries) == 2


def test_a_server_without_such_a_task_ends_the_run_once(tmp_path: Path) -> None:
    folder = photos(tmp_path / "in", "a.jpg", "b.jpg")
    refused = httpx.Response(404, json={"code": "not_found", "detail": "nothing is here"})
    with pytest.raises(CommandError, match=r"404 not_found: nothing is here; 0 of 2 pictures"):
        Server(lambda number: refused).classify(folder, "-o", tmp_path / "labels.csv", "--jobs", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_mistakes_are_named_before_the_first_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = photos(tmp_path / "in", "a.jpg")
    for arguments, message in (
        ([folder], r"in is a directory; use -o labels\.csv or -o labels\.jsonl"),
        ([folder, "-o", "labels.xls"], r"labels\.xls: labels are written as \.csv or \.jsonl"),
        (["-", "-o", "labels.csv"], "-o needs files or a directory"),
        ([tmp_path / "absent.jpg"], r"absent\.jpg is neither a file nor a directory"),
    ):
        with pytest.raises(CommandError, match=message):
            Server().classify(*arguments)
    (tmp_path / "empty").mkdir()
    assert Server().classify(tmp_path / "empty", "-o", tmp_path / "labels.csv") == 2
    assert "no pictures" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["classify", "a.jpg", "--top", "0"])
