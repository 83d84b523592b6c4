"""The tasks of this server: one line each, with the module whose `TASK` declares it.

Nothing else in `app` refers to a task by name. docs/new-task.md shows how to add one.
"""

from __future__ import annotations

PIPELINES: dict[str, str] = {
    "segment": "app.tasks.segment.task",
    "sentiment": "app.tasks.sentiment.task",
}
