"""Errors of frameworks as one line: what the frameworks wrote, and what is shown of it."""

import time

import pytest

from paddlepool.contracts.sentences import MAX_CHARACTERS, MAX_INPUT, printable, sentence

PADDLE = """

--------------------------------------
C++ Traceback (most recent call last):
--------------------------------------
0   paddle_infer::Predictor::Run()
1   phi::AddKernel(0x7f01a8)

----------------------
Error Message Summary:
----------------------
InvalidArgumentError: Broadcast dimension mismatch. X = [1, 96, 3, 3] and Y = [1, 96, 4, 4].
  [Hint: Expected x == y.] (at ../paddle/phi/kernels/funcs/common_shape.h:86)
  [operator < add > error]
"""
ONNXRUNTIME = (
    "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code. Name:'/model/Add' Status Message: "
    "/onnxruntime_src/onnxruntime/core/providers/cpu/math/add.cc:36 void "
    "onnxruntime::Add::Run(const std::unordered_map<std::string, int>&, bool) "
    "Attempting to broadcast 3 by 4"
)
OPENVINO = """Exception from src/inference/src/cpp/infer_request.cpp:223:
Exception from src/inference/src/dev/plugin.cpp:55:
Check 'x' failed at src/core/shape.cpp:10: Cannot read /srv/models/a/1 at 0x7ffc12[31m
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            PADDLE,
            "InvalidArgumentError: Broadcast dimension mismatch. X = [1, 96, 3, 3] and "
            "Y = [1, 96, 4, 4]. [Hint: Expected x == y.] [operator < add > error]",
        ),
        (
            ONNXRUNTIME,
            "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code. Name:'/model/Add' Status "
            "Message: Attempting to broadcast 3 by 4",
        ),
        (
            OPENVINO,
            "Check 'x' failed at src/core/shape.cpp:10: Cannot read … at \\x1b[31m",
        ),
        ("no file '/models/a/1/b.pdiparams'", "no file '…'"),
        ("", ""),
    ],
    ids=["paddle", "onnxruntime", "openvino", "a file", "nothing"],
)
def test_a_framework_s_text_becomes_one_line(text: str, line: str) -> None:
    assert sentence(text) == line
    assert sentence(line) == line.replace("\\x1b", "\\x1b")


@pytest.mark.parametrize(
    "text",
    [
        "/-" * MAX_INPUT,
        "/a" * MAX_INPUT,
        "x" * 10 * MAX_INPUT,
        "(at " * MAX_INPUT,
        "… onnxruntime::(" * MAX_INPUT,
    ],
)
def test_a_long_text_is_cut_and_costs_little(text: str) -> None:
    began = time.process_time()
    assert len(sentence(text)) <= MAX_CHARACTERS
    assert time.process_time() - began < 0.5


def test_control_characters_are_escaped_and_words_are_not() -> None:
    assert printable("a\n\x1b[0m 中文\u2028") == "a\\n\\x1b[0m 中文\\u2028"
