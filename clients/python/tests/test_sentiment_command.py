"""`paddlepool sentiment`: what it refuses, what a fault costs, and how it goes on after one."""

from __future__ import annotations

import argparse
import csv
import io
import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from paddlepool_client import Client, __version__
from paddlepool_client.commands import sentiment
from paddlepool_client.commands.errors import CommandError
from paddlepool_client.commands.main import main

BAD = "坏"
SENTENCE = "a sentence about the text"


class Server:
    """Answers with a label for each text; a text that contains BAD is refused with `refusal`.

    `fails` tells what happens to the request with this number, counted from 0.
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.refusal = 422
        self.fails: dict[int, Callable[[], httpx.Response]] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":  # whether anybody is there
            return httpx.Response(200, json={"ready": True})
        texts = json.loads(request.content)["inputs"]
        self.asked.append(texts)
        if fault := self.fails.pop(len(self.asked) - 1, None):
            return fault()
        if any(BAD in text for text in texts):
            return httpx.Response(self.refusal, json={"code": "refused", "detail": SENTENCE})
        return httpx.Response(
            200,
            json=[[{"label": f"of {text}", "label_zh": "中文", "score": 0.5}] for text in texts],
        )

    def classify(self, file: Path | str, *more: str) -> int:
        parser = argparse.ArgumentParser()
        sentiment.configure(parser)
        transport = httpx.MockTransport(self)
        connect = partial(Client, transport=transport, sleep=lambda seconds: None)
        return sentiment.run(parser.parse_args([str(file), *more]), connect=connect)


def test_the_version_is_that_of_the_client(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"paddlepool-client {__version__}\n"


def test_a_proxy_variable_that_cannot_be_used_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert main(["sentiment", "--url", "http://server.invalid", "好"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("paddlepool-client sentiment: one of HTTP_PROXY, HTTPS_PROXY, ALL_PROXY")


@pytest.fixture
def server() -> Server:
    return Server()


def many(path: Path, count: int = 100) -> Path:
    lines = "".join(f'{n},"text {n}\nits second line"\n' for n in range(count))
    path.write_text(f"id,text\n{lines}", "utf-8")
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    path = tmp_path / "posts.csv"
    path.write_text("id,words\n1,好\n", "utf-8")
    return path


def test_a_missing_column_leaves_earlier_results(
    posts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error must not empty what a long run has written."""
    output = posts.with_suffix(".emotion.csv")
    output.write_text("results of yesterday", "utf-8")
    assert main(["sentiment", str(posts)]) == 1
    assert (
        "has no column 'text', it has ['id', 'words']; name one of them with --column"
        in capsys.readouterr().err
    )
    assert output.read_text("utf-8") == "results of yesterday"


def test_the_input_is_never_the_output(posts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Opening it for writing would lose the texts before they are read."""
    before = posts.read_bytes()
    command = ["sentiment", str(posts), "--column", "words", "-o", str(posts)]
    assert main(command) == 1
    assert "is the input" in capsys.readouterr().err
    assert posts.read_bytes() == before


def test_columns_of_the_same_name_are_not_lost(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Labels that somebody gave by hand are refused, and kept beside ours with a prefix."""
    table = tmp_path / "judged.csv"
    table.write_text("text,label\n好,happy\n", "utf-8")
    assert main(["sentiment", str(table)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "has a column 'label' already; use --prefix" in line
    assert [path.name for path in tmp_path.iterdir()] == ["judged.csv"]
    assert server.classify(table, "--prefix", "our_") == 0
    assert read(tmp_path / "judged.emotion.csv") == [
        {
            "text": "好",
            "label": "happy",
            "our_label": "of 好",
            "our_label_zh": "中文",
            "our_score": "0.5000",
            "our_error": "",
        }
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("id,text\n1,好\n2,a,b\n".encode(), "line 3: 3 fields, the header has 2"),
        ("text\n好\n".encode() + "不好\n".encode("gbk"), "line 3: not utf-8; use --encoding"),
        (b"text\n" + b"x" * 200_000, "line 2: field larger than field limit (131072)"),
        ("text,text\n好,坏\n".encode(), "has 2 columns 'text', expected one"),
    ],
    ids=["too many fields", "not UTF-8", "a huge field", "the column twice"],
)
def test_a_file_at_fault_is_refused_before_anything_is_asked(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "posts.csv"
    table.write_bytes(content)
    assert main(["sentiment", str(table), "--url", "http://127.0.0.1:1"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line
    assert [path.name for path in tmp_path.iterdir()] == ["posts.csv"]


def test_the_line_of_a_wrong_byte_is_right_far_into_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is decoded in blocks, and the fault is noticed ahead of the row that has it."""
    table = many(tmp_path / "posts.csv", 1000)
    with table.open("ab") as file:
        file.write("1000,不好\n".encode("gbk") + b"1001,fine\n" * 5000)
    assert main(["sentiment", str(table)]) == 1
    assert f"line {1 + 2 * 1000 + 1}: not utf-8" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is a directory, or an encoding that is none."""
    for path in (tmp_path, tmp_path / "absent.csv"):
        assert main(["sentiment", str(path)]) == 1
        assert capsys.readouterr().err == f"paddlepool-client sentiment: {path} is not a file\n"
    for encoding in ("hex", "klingon"):
        with pytest.raises(SystemExit):
            main(["sentiment", "posts.csv", "--encoding", encoding])
        assert f"'{encoding}' is not a text encoding" in capsys.readouterr().err


def test_other_encodings_and_short_rows_are_read(tmp_path: Path, server: Server) -> None:
    """A byte order mark is not part of a name, and what is missing is empty."""
    table = tmp_path / "posts.csv"
    table.write_bytes("text,id\n好,1\n\n不好\n".encode("gb18030"))
    assert server.classify(table, "--encoding", "gb18030") == 0
    assert [(row["id"], row["label"]) for row in read(tmp_path / "posts.emotion.csv")] == [
        ("1", "of 好"),
        ("", "of 不好"),
    ]
    table.write_text("text\n好\n", "utf-8-sig")
    assert server.classify(table) == 0
    assert [row["label"] for row in read(tmp_path / "posts.emotion.csv")] == ["of 好"]


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "gb18030", "utf-16"])
def test_what_excel_writes_excel_can_read(
    delimiter: str, encoding: str, tmp_path: Path, server: Server
) -> None:
    """Keep the file's delimiter and byte order mark, also in a run that is continued."""
    table = tmp_path / "posts.csv"
    lines = [f'{number}{delimiter}"好, {number}; 好"\r\n' for number in range(40)]
    table.write_text(f"id{delimiter}text\r\n{''.join(lines)}", encoding, newline="")
    server.fails = {1: interrupted}
    named = () if encoding.startswith("utf-8") else ("--encoding", encoding)
    assert server.classify(table, *named) == 130
    assert server.classify(table, *named) == 0
    assert sum(map(len, server.asked)) == 32 + 8 + 8
    content = (tmp_path / "posts.emotion.csv").read_text("utf-8")
    assert content.startswith("\ufeff") == (encoding != "utf-8")
    rows = list(csv.DictReader(io.StringIO(content.lstrip("\ufeff")), delimiter=delimiter))
    assert [row["id"] for row in rows] == [str(number) for number in range(40)]
    assert {row["label"] for row in rows} == {f"of 好, {number}; 好" for number in range(40)}
    assert {row["label_zh"] for row in rows} == {"中文"}


@pytest.mark.parametrize("refusal", [422, 413])
def test_a_bad_text_costs_only_its_row(refusal: int, tmp_path: Path, server: Server) -> None:
    table = many(tmp_path / "posts.csv", 64)
    table.write_text(table.read_text("utf-8").replace("text 3\n", f"text {BAD}\n"), "utf-8")
    server.refusal = refusal
    assert server.classify(table) == 1
    assert [len(texts) for texts in server.asked] == [32, *[1] * 32, 32]
    rows = read(tmp_path / "posts.emotion.csv")
    assert [row["id"] for row in rows if row["error"]] == ["3"]
    assert rows[3]["error"] == "refused: a sentence about the text"
    assert rows[3]["label"] == ""


def gone() -> httpx.Response:
    raise httpx.ConnectError("refused")


def interrupted() -> httpx.Response:
    signal.raise_signal(signal.SIGINT)
    return httpx.Response(500)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("faults", "code", "stopped"),
    [
        ([lambda: httpx.Response(401, json={"code": "unauthorized"})], 2, "401 unauthorized"),
        ([gone] * 5, 2, "\nno server at http://127.0.0.1:8000 (refused)\n"),
        ([interrupted], 130, "interrupted"),
    ],
    ids=["a wrong key", "no server", "Ctrl-C"],
)
def test_a_run_that_was_cut_off_is_gone_on_with(
    faults: list[Callable[[], httpx.Response]],
    code: int,
    stopped: str,
    tmp_path: Path,
    server: Server,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No text is sent twice or left out; earlier results stay until the new ones are whole."""
    table = many(tmp_path / "posts.csv")
    output = tmp_path / "posts.emotion.csv"
    output.write_text("results of yesterday", "utf-8")
    server.fails = {2 + number: fault for number, fault in enumerate(faults)}
    assert server.classify(table) == code
    error = capsys.readouterr().err
    assert stopped in error
    part = f"{output}.column2.part"
    assert f"64 of 100 texts are in {part}; run the same command again to continue" in error
    assert output.read_text("utf-8") == "results of yesterday"
    assert len(server.asked) == 2 + len(faults)
    server.asked.clear()
    assert server.classify(table) == 0
    assert [len(texts) for texts in server.asked] == [32, 4]
    assert not Path(part).exists()
    rows = read(output)
    assert [row["id"] for row in rows] == [str(n) for n in range(100)]
    assert all(row["label"] == f"of {row['text']}" for row in rows)
    assert "100 of 100 texts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "rows_left"),
    [
        (lambda written: written[:-20], 63),
        (lambda written: written + b'64,"text', 64),
        (lambda written: written.replace(b"text 40\n", b"other\n", 1), 40),
        (lambda written: written.replace(b"id,text", b"id,words"), 0),
        (lambda written: b"", 0),
    ],
    ids=["cut off", "half a row", "another text", "another header", "nothing"],
)
def test_only_rows_that_fit_are_gone_on_from(
    spoil: Callable[[bytes], bytes], rows_left: int, tmp_path: Path, server: Server
) -> None:
    """A power cut may leave half a row, and the file may have changed since."""
    table = many(tmp_path / "posts.csv")
    server.fails = {2: lambda: httpx.Response(500)}
    assert server.classify(table) == 2
    part = tmp_path / "posts.emotion.csv.column2.part"
    part.write_bytes(spoil(part.read_bytes()))
    server.asked.clear()
    assert server.classify(table) == 0
    assert sum(map(len, server.asked)) == 100 - rows_left
    assert [row["id"] for row in read(tmp_path / "posts.emotion.csv")] == [
        str(n) for n in range(100)
    ]


def test_errors_of_the_first_run_count_in_the_second(
    tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    table = many(tmp_path / "posts.csv", 64)
    table.write_text(table.read_text("utf-8").replace("text 3\n", f"text {BAD}\n"), "utf-8")
    server.fails = {33: lambda: httpx.Response(500)}
    assert server.classify(table) == 2
    assert server.classify(table) == 1
    assert "63 of 64 texts classified" in capsys.readouterr().err


def test_another_column_is_not_gone_on_from(tmp_path: Path, server: Server) -> None:
    """Its results would be those of other texts."""
    table = many(tmp_path / "posts.csv")
    server.fails = {1: lambda: httpx.Response(500)}
    assert server.classify(table) == 2
    assert server.classify(table, "--column", "id") == 0
    rows = read(tmp_path / "posts.emotion.csv")
    assert [row["label"] for row in rows] == [f"of {n}" for n in range(100)]


def test_one_text_is_shown_with_all_its_labels(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server.classify(Path("今天真开心")) == 0
    assert server.asked == [["今天真开心"]]
    assert capsys.readouterr().out.split() == ["of", "今天真开心", "中文", "50.0%", "█" * 12]


def test_several_texts_are_shown_a_line_each(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a terminal would obey is not printed; a long text is cut."""
    assert server.classify(Path("一\x1b[31m"), "长" * 100) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("%  一 [31m")
    assert second.endswith("长" * 60 + "…")


def test_standard_input_is_a_text_a_line(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty lines are none; as JSON for another program. Only newlines end a line."""
    lines = "一\r\n\n  \n二\u2028\n" + "三\n" * 40
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    assert server.classify(Path("-"), "--json") == 0
    assert [len(batch) for batch in server.asked] == [32, 10]
    shown = json.loads(capsys.readouterr().out)
    assert len(shown) == 42
    assert shown[1] == [{"label": "of 二\u2028", "label_zh": "中文", "score": 0.5}]


def test_bytes_that_are_no_text_are_refused_before_they_are_sent(server: Server) -> None:
    """As Python hands them over where an argument is not UTF-8."""
    with pytest.raises(CommandError, match=r"text 2 of 2 is not UTF-8$"):
        server.classify(Path("好"), "\udced\udca0")
    assert server.asked == []


def test_a_server_that_leaves_is_one_line(server: Server) -> None:
    """Not a traceback, as main() prints only a CommandError on one line."""
    server.fails = dict.fromkeys(range(5), gone)
    with pytest.raises(CommandError, match=r"^no server at http://127\.0\.0\.1:8000 \(refused\)$"):
        server.classify(Path("好"))


@pytest.mark.parametrize("option", ["--top-k", "--timeout-ms"])
@pytest.mark.parametrize("value", ["0", "-4", "many"])
def test_numbers_begin_at_one(
    option: str, value: str, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        server.classify(Path("好"), f"{option}={value}")
    assert f"must be a whole number from 1, received '{value}'" in capsys.readouterr().err
