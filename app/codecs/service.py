"""All that an image task needs of the codecs, as one value built by `app.main`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.awaiting import result_of
from app.codecs.limits import PictureLimits
from app.codecs.picture import PictureStore
from app.codecs.pool import CodecPool
from app.contracts.errors import PaddlepoolError, WorkerCrashed
from app.contracts.tensors import Tensors
from app.process.child import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Codecs:
    """The processes, the memory budget of decoded pictures, and what a picture may ask for."""

    pool: CodecPool
    pictures: PictureStore
    limits: PictureLimits = field(default_factory=PictureLimits)

    async def call(
        self,
        function: str,
        meta: Mapping[str, Any],
        arrays: Tensors,
        *,
        descriptors: Sequence[int] = (),
        deadline: float,
        blame: type[PaddlepoolError] = WorkerCrashed,
        urgent: bool = False,
    ) -> Reply:
        """Run `function` in a codec process; arguments and errors are those of CodecPool.submit.

        When the awaiting task is cancelled, a call that still waits is dropped. One that runs ends
        by itself with its own duplicates of `descriptors`: the caller may close them at once.
        """
        return await result_of(
            self.pool.submit(
                function,
                meta,
                arrays,
                descriptors=descriptors,
                deadline=deadline,
                blame=blame,
                urgent=urgent,
            )
        )

    def close(self) -> None:
        self.pool.close()
