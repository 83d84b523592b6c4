"""The tasks of the server itself."""

PIPELINES: dict[str, str] = {
    "classify": "paddlepool.tasks.classify.task",
    "ocr": "paddlepool.tasks.ocr.task",
    "segment": "paddlepool.tasks.segment.task",
    "sentiment": "paddlepool.tasks.sentiment.task",
}
"""The module of each task, by the task's name; its attribute `TASK` declares the task."""
