"""The task of `POST /sentiment`: texts in, labels with scores out.

`pipeline` checks texts, and turns them into engine jobs and scores; `router` is the endpoint,
`evaluation` serves the offline commands, and `task` declares the task.
"""
