"""The tasks of this server, with the module whose `TASK` declares each (docs/new-task.md)."""

PIPELINES: dict[str, str] = {
    "segment": "paddlepool.tasks.segment.task",
    "sentiment": "paddlepool.tasks.sentiment.task",
}
