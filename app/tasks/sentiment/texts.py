"""Checks of texts, made before the tokenizer sees a character.

The tokenizer would read a long text whole before truncating it: 3.4 million characters take 23 s.
No message repeats any part of a text.
"""

import re
from collections.abc import Sequence

from pydantic import BaseModel, Field

from app.contracts.errors import InvalidParameter, TextEmpty, TextTooLong, TooManyInputs
from app.settings.server import KIB, Bytes

# White space, control characters, and what Unicode calls default-ignorable (zero-width spaces and
# joiners, BOM, bidi marks, fillers, variation selectors, tags), plus the blank braille pattern.
_INVISIBLE = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    r"\u202a-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)

# Half of a surrogate pair: JSON can represent it, UTF-8 and the tokenizer cannot.
_SURROGATE = re.compile(r"[\ud800-\udfff]")


MAX_TOP_K = 1_000
"""Largest `top_k` in every request format; a model with fewer labels returns all of them."""


class SentimentSettings(BaseModel):
    """Settings of the task; each variable is PADDLEPOOL_ and the field's name in capitals."""

    sentiment_max_bytes: Bytes = Field(
        256 * KIB, description="Maximum request body of /sentiment, in bytes."
    )
    text_max_characters: int = Field(
        2_000, ge=1, le=1_000_000, description="Maximum characters of one text, before tokenising."
    )
    text_max_inputs: int = Field(
        32, ge=1, le=1_024, description="Maximum texts in one request to /sentiment."
    )


class WholeTexts(tuple[str, ...]):
    """Texts that must be read whole: a text that the model would truncate is rejected."""


def check_texts(texts: Sequence[str], *, limits: SentimentSettings) -> None:
    """Raises TooManyInputs, TextTooLong, TextEmpty, and InvalidParameter for a lone surrogate."""
    if len(texts) > limits.text_max_inputs:
        raise TooManyInputs(
            f"{len(texts)} texts in one request; the limit is {limits.text_max_inputs}",
            limit=limits.text_max_inputs,
            received=len(texts),
        )
    if not texts:
        raise TextEmpty("the request holds no text; at least 1 is expected", limit=1, received=0)
    most = limits.text_max_characters
    for position, text in enumerate(texts, 1):
        name = f"text {position} of {len(texts)}"
        if len(text) > most:
            raise TextTooLong(
                f"{name} has {len(text)} characters; the limit is {most}",
                limit=most,
                received=len(text),
            )
        if _SURROGATE.search(text):
            raise InvalidParameter(
                f"{name} contains a lone surrogate, which is not a character; expected Unicode text"
            )
        if _INVISIBLE.fullmatch(text):
            raise TextEmpty(
                f"{name} has {len(text)} characters and none of them is visible", received=len(text)
            )
