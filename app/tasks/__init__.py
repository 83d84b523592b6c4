"""The tasks of this server, with the module whose `TASK` declares each (docs/new-task.md)."""

PIPELINES: dict[str, str] = {
    "segment": "app.tasks.segment.task",
    "sentiment": "app.tasks.sentiment.task",
}
