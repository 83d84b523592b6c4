"""A command run by `tests.avx2.run` finds no instructions newer than AVX2, nor do its children."""

import json
import subprocess
import sys

import pytest

from tests.avx2.run import why_not
from tests.ran import ROOT

FOUND = """
import json
from numpy._core._multiarray_umath import __cpu_features__ as features
from paddlepool.contracts.resources import processor
found = [name for name, there in features.items() if there and name.startswith("AVX")]
print(json.dumps([found, processor().instruction_sets]))
"""
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
CRASH = "import ctypes; ctypes.string_at(0)"


def as_avx2(*command: str) -> "subprocess.CompletedProcess[str]":
    runner = [sys.executable, "-m", "tests.avx2.run", *command]
    return subprocess.run(runner, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(why_not() is not None, reason=f"cannot hide instructions: {why_not()}")
def test_a_program_and_its_child_find_avx2_alone() -> None:
    for command in ([FOUND], [CHILD, FOUND]):
        ended = as_avx2(sys.executable, "-c", *command)
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == [["AVX", "AVX2"], ["avx2", "fma"]]
    assert as_avx2(sys.executable, "-c", CRASH).returncode != 0  # a real fault still ends it
