"""The executors that all pipelines share. `app.main` passes them to `build(info, workers)`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.tasks.codecs.pool import Codecs


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """`codec` decodes pictures in processes that can be killed; `text` tokenises in threads."""

    codec: Codecs
    text: ThreadPoolExecutor

    async def close(self) -> None:
        await self.codec.pool.close()
        self.text.shutdown(wait=False, cancel_futures=True)
