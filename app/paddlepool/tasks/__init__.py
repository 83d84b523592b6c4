"""The server's own tasks, with the module whose `TASK` declares each."""

PIPELINES: dict[str, str] = {
    "classify": "paddlepool.tasks.classify.task",
    "ocr": "paddlepool.tasks.ocr.task",
    "segment": "paddlepool.tasks.segment.task",
    "sentiment": "paddlepool.tasks.sentiment.task",
}
