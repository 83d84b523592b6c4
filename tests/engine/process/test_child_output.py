"""What a child prints becomes lines of the log, which look like nothing else and have limits."""

import logging

import pytest

from paddlepool.engine.process.child_output import (
    BURST_LINES,
    LINE_BYTES,
    LINES_PER_SECOND,
    OutputLogger,
)
from tests.engine.fakes import ManualClock


@pytest.mark.parametrize(
    ("blocks", "lines"),
    [
        ([b"one\ntwo\n", b"thr", b"ee\n"], ["one", "two", "three"]),
        ([b"\n\nlast"], ["last"]),
        ([b"\x1b[31m\r{\xff\xe4\xb8\xad\n"], [r"\x1b[31m\r{\xff中"]),
        ([b"a\x00\xe2\x80\xae\n"], [r"a\x00\u202e"]),
        ([b"x" * 600] * 3 + [b"\nshort\n"], ["x" * LINE_BYTES + "…", "short"]),
    ],
    ids=["pieces", "unfinished", "control codes", "right to left", "too long"],
)
def test_each_line_is_a_record_of_the_process(
    blocks: list[bytes], lines: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    printed = OutputLogger(7)
    for block in blocks:
        printed.add(block)
    printed.end()
    assert caplog.messages == [f"child process 7: {line}" for line in lines]
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_a_child_that_prints_without_end_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    printed = OutputLogger(7, clock=clock)
    printed.add(b"again\n" * (BURST_LINES + 9))
    assert len(caplog.records) == BURST_LINES
    clock.now += 1.01 / LINES_PER_SECOND
    printed.add(b"later\n")
    assert caplog.messages[-2:] == [
        "9 lines of child process 7 were dropped",
        "child process 7: later",
    ]
    printed.add(b"dropped\n")
    printed.end()
    assert caplog.messages[-1] == "1 lines of child process 7 were dropped"
