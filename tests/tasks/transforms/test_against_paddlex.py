"""Every operation equals PaddleX 3.7.2 on generated pictures of odd sizes.

PaddleX's results are stored as hashes. To make them again:

    .venv/bin/python loadtest/against_paddlex.py --write tests/tasks/transforms/paddlex_results.json
"""

import json
from pathlib import Path

import pytest
from against_paddlex import CONFIGS, digest, digest_of_result, generated_cases

STORED = json.loads(Path(__file__).with_name("paddlex_results.json").read_text("utf-8"))
CASES = generated_cases()


@pytest.mark.parametrize("name", CASES)
def test_the_model_gets_what_paddlex_gives_it(name: str) -> None:
    tensor = CASES[name].tensor()
    stored = STORED[name]
    assert {"shape": list(tensor.shape), "tensor": digest(tensor)} == {
        key: stored[key] for key in ("shape", "tensor")
    }


@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_paddlex(name: str) -> None:
    assert digest_of_result(CASES[name].result()) == STORED[name]["result"]


def test_every_configuration_finds_something() -> None:
    """Otherwise a result would be equal because it is empty."""
    assert STORED.keys() == CASES.keys()
    for title in CONFIGS:
        results = [case.result() for name, case in CASES.items() if name.startswith(f"{title},")]
        assert any(result[0] for result in results), title
