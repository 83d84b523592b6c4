"""The task of `POST /sentiment`: texts in, labels with scores out.

`texts` checks which texts are accepted, `pipeline` turns them into engine jobs and scores,
`router` is the endpoint, and `task` declares the task.
"""
