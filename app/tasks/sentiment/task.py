"""The declaration of the task for the server and the offline commands."""

from app.tasks.sentiment.pipeline import (
    SentimentPipeline,
    SentimentSettings,
    label_agreement,
    tensors,
)
from app.tasks.sentiment.router import build_router
from app.tasks.task import Task, offline

TASK = Task(
    build=lambda info, workers: SentimentPipeline(info, executor=workers.text),
    endpoints=build_router,
    settings=SentimentSettings,
    tensors=tensors,
    headers=("X-Truncated",),
    card=("labels", "labels_zh"),
    comparison=offline("app.tasks.sentiment.evaluation:LabelComparison"),
    agreement=lambda _: label_agreement,
    quality=offline("app.tasks.sentiment.evaluation:SentimentQuality"),
)
