"""What this task declares to the server."""

from __future__ import annotations

from paddlepool.tasks.task import Task
from tests.tasks.tagger.pipeline import open_pipeline
from tests.tasks.tagger.router import build_router
from tests.tasks.tagger.settings import TaggerSettings

TASK = Task(
    build=lambda info, workers: open_pipeline(info, executor=workers.text),
    endpoints=build_router,
    settings=TaggerSettings,
    headers=("X-Tags",),
    card=("tags",),
)
