"""The settings of this task."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app.settings import KIB, Bytes

MAX_TOP_K = 1_000
"""Largest `top_k` of every format; a model with fewer labels answers with all it has."""


class SentimentSettings(BaseModel):
    """Read as PADDLEPOOL_ and the field's name in capitals, with the server's own."""

    sentiment_max_bytes: Bytes = Field(
        256 * KIB, description="Largest request body of /sentiment, in bytes."
    )
    text_max_characters: int = Field(
        2_000, ge=1, le=1_000_000, description="Most characters of one text, before tokenising."
    )
    text_max_inputs: int = Field(
        32, ge=1, le=1_024, description="Most texts in one request to /sentiment."
    )
