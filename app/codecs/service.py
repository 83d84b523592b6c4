"""All that an image task needs of the codecs, as one value built by `app.main`."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.codecs.limits import PictureLimits
from app.codecs.picture import PictureStore
from app.codecs.pool import CodecPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The processes, the memory budget of decoded pictures, and what a picture may ask for."""

    pool: CodecPool
    pictures: PictureStore
    limits: PictureLimits = field(default_factory=PictureLimits)

    def close(self) -> None:
        self.pool.close()
