"""The tasks this server can do: one line each, naming the module whose `TASK` declares it.

Nothing else in `app` knows a task by name. docs/new-task.md adds one.
"""

from __future__ import annotations

PIPELINES: dict[str, str] = {
    "segment": "app.tasks.segment.task",
    "sentiment": "app.tasks.sentiment.task",
}
