"""The declaration of the task for the server and the offline commands."""

from __future__ import annotations

from app.pipelines.sentiment.pipeline import label_agreement, open_pipeline
from app.pipelines.sentiment.router import build_router
from app.pipelines.sentiment.tensors import tensors
from app.pipelines.sentiment.texts import SentimentSettings
from app.pipelines.task import Task, offline

TASK = Task(
    build=lambda info, workers: open_pipeline(info, executor=workers.text),
    endpoints=build_router,
    settings=SentimentSettings,
    tensors=tensors,
    headers=("X-Truncated",),
    card=("labels", "labels_zh"),
    comparison=offline("app.pipelines.sentiment.evaluation:LabelComparison"),
    agreement=lambda _: label_agreement,
    quality=offline("app.pipelines.sentiment.evaluation:SentimentQuality"),
)
