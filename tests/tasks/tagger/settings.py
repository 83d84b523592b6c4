"""The settings of this task."""

from __future__ import annotations

from pydantic import BaseModel, Field

from paddlepool.settings.server import KIB, Bytes


class TaggerSettings(BaseModel):
    """Read as PADDLEPOOL_ and the field's name in capitals, with the server's own."""

    tagger_max_bytes: Bytes = Field(4 * KIB, description="Largest request body of /tag, in bytes.")
    tagger_max_tags: int = Field(3, ge=1, le=5, description="Most tags of one text.")
