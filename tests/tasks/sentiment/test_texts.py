"""Which texts /sentiment accepts."""

import pytest

from paddlepool.contracts.errors import TextEmpty, TextTooLong
from paddlepool.tasks.sentiment.pipeline import SentimentSettings, check_texts

LIMITS = SentimentSettings()


@pytest.mark.parametrize("length", [1, 1_999, 2_000])
def test_a_text_of_up_to_the_limit_is_accepted(length: int) -> None:
    """Length is counted in code points: 2,000 characters beyond the BMP are 2,000."""
    check_texts(["喜" * length, "😀" * length], limits=LIMITS)


def test_one_character_more_is_refused_with_both_numbers() -> None:
    with pytest.raises(TextTooLong, match="text 2 of 2 has 2001 characters") as caught:
        check_texts(["短", "长" * 2_001], limits=LIMITS)
    assert (caught.value.limit, caught.value.received) == (2_000, 2_001)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param(" \t\r\n\v\f", id="ascii white space"),
        pytest.param("\u00a0\u2003\u2028\u2029\u0085", id="other spaces"),
        pytest.param("\u200d\u200c\u2060", id="joiners"),
        pytest.param("\u202e\u2066\u2069\u061c", id="bidi marks"),
        pytest.param("\u3164\uffa0\u115f", id="hangul fillers"),
        pytest.param("\u2800", id="blank braille"),
        pytest.param("\ufe0f\U000e0100", id="variation selectors"),
        pytest.param("\U000e0041\U000e007f", id="tags"),
        pytest.param("\x00\x01\x7f\x9f", id="control characters"),
    ],
)
def test_a_text_without_a_visible_character_is_empty(text: str) -> None:
    """T2: white space and invisible characters alone are text_empty, in whatever mixture."""
    for blank in (text, f" {text}\u3000{text}\n"):
        with pytest.raises(TextEmpty):
            check_texts([blank], limits=LIMITS)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a\x00b\x01c", id="NUL and control inside"),
        pytest.param("\u202e\u4f60\u597d\u202c", id="bidi around"),
        pytest.param("你\u200b好", id="zero-width inside"),
        pytest.param("مرحبا بالعالم", id="right to left"),
        pytest.param("👩‍👩‍👧‍👦", id="emoji joined"),
        pytest.param("Z̸̡̢̛̗̘̙͔͎͖͋͛͐͑̈́͒͝͠a̶l̷g̶o̴", id="zalgo"),
        pytest.param("𠀀", id="beyond the BMP"),
    ],
)
def test_odd_but_visible_text_is_accepted(text: str) -> None:
    check_texts([text], limits=LIMITS)
