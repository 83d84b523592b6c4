"""JSON of clients."""

import math

import pytest

from paddlepool.service.api.json_text import parsed


def test_a_text_has_the_values_that_json_gives_it() -> None:
    text = '{"名": "悲伤\\n", "many": [1, 2.5, -0.0, true, null], "large": 18446744073709551616}'
    many = [1, 2.5, -0.0, True, None]
    assert parsed(text.encode()) == {"名": "悲伤\n", "many": many, "large": 2**64}
    assert parsed(b'{"a": 1, "a": 2}') == {"a": 2}
    assert parsed(b"1e999") == math.inf


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b'{"a":1,}', b'{"a":1}x', b"\xff", b'"\xff"', b'{"a":NaN}', b"-Infinity"),
        *(b'"\\ud800"', b'"\x01"', b"[" * 1_000_000, b"1" * 1_000_000),
    ],
    ids=lambda text: repr(text[:9]),
)
def test_what_is_no_json_is_an_error_that_names_the_place(text: bytes) -> None:
    """And repeats nothing of it: a message may reach others."""
    with pytest.raises(ValueError, match=r" at line 1 column \d+$") as caught:
        parsed(text)
    assert "xff" not in str(caught.value)
    assert "1}x" not in str(caught.value)


def test_names_do_not_stay_for_later_texts() -> None:
    """Two texts with the same names share no object: nothing is kept between them."""
    text = b'{"a name that is long enough to be kept": 1}'
    [first], [second] = parsed(text), parsed(text)
    assert first == second
    assert first is not second
