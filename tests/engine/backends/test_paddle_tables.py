"""Ids are checked where Paddle does not check them."""

import json
from pathlib import Path

import numpy as np
import pytest

from paddlepool.contracts.errors import BackendError
from paddlepool.engine.backends.paddle_operators import (
    Operator,
    check_ids,
    operators_of,
    unchecked_tables,
)


def looked_up(source: str, rows: int, padding_idx: int) -> Operator:
    attributes = {"padding_idx": padding_idx}
    return Operator("embedding", attributes, ((-1, -1), (rows, 4)), ((-1, -1, 4),), source=source)


def test_the_smallest_table_counts() -> None:
    operators = [
        looked_up("ids", 100, 0),
        looked_up("ids", 90, 0),
        looked_up("ids", 80, -1),
        looked_up("types", 2, -1),
        looked_up("", 7, 0),
    ]
    assert unchecked_tables(operators) == {"ids": 90}
    assert unchecked_tables(operators, every=True) == {"ids": 80, "types": 2}


def test_ids_are_followed_through_other_shapes_and_types(tmp_path: Path) -> None:
    def tensor(number: int, *shape: int) -> dict[str, object]:
        kind = {"#": "0.t_dtensor", "D": [{"#": "0.t_i64"}, list(shape), "NCHW", [], 0]}
        return {"%": number, "TT": kind}

    name = {"N": "name", "AT": {"#": "0.a_str", "D": "ids"}}
    padding = {"N": "padding_idx", "AT": {"#": "0.a_i64", "D": 0}}
    operators = [
        {"#": "p", "A": [0, 1, "w"], "O": tensor(1, 50, 4)},
        {"#": "1.data", "A": [name], "I": [], "O": [tensor(2, -1, -1)]},
        {"#": "1.cast", "A": [], "I": [{"%": 2}], "O": [tensor(3, -1, -1)]},
        {"#": "1.reshape", "A": [], "I": [{"%": 3}], "O": [tensor(4, -1)]},
        {"#": "1.embedding", "A": [padding], "I": [{"%": 4}, {"%": 1}], "O": [tensor(5, -1, 4)]},
        {"#": "1.scale", "A": [], "I": [{"%": 3}], "O": [tensor(6, -1, -1)]},
        {"#": "1.embedding", "A": [padding], "I": [{"%": 6}, {"%": 1}], "O": [tensor(7, -1, 4)]},
    ]
    program = tmp_path / "program.json"
    program.write_text(json.dumps({"program": {"regions": [{"blocks": [{"ops": operators}]}]}}))
    read = operators_of(program)
    assert [operator.source for operator in read if operator.name == "embedding"] == ["ids", ""]
    assert unchecked_tables(read) == {"ids": 50}


@pytest.mark.parametrize("wrong", [50, -1])
def test_an_id_outside_its_table_is_refused(wrong: int) -> None:
    check_ids({"ids": np.array([[0, 49]])}, {"ids": 50})
    check_ids({"ids": np.zeros((0, 4), np.int64)}, {"ids": 50})
    with pytest.raises(BackendError, match=rf"^ids takes ids from 0 to 49, received {wrong}$"):
        check_ids({"ids": np.array([[0, wrong]])}, {"ids": 50})
