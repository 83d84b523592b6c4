"""The settings of this task."""

from __future__ import annotations

from pydantic import BaseModel, Field

from app.settings.server import MIB, Bytes


class SegmentSettings(BaseModel):
    """Read with the server's settings, as PADDLEPOOL_ and the field's name in capitals."""

    segment_max_bytes: Bytes = Field(
        12 * MIB, description="Largest request body of /segment, in bytes."
    )
