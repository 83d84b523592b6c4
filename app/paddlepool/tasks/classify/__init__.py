"""The task of `POST /classify`: a picture in, labels with scores out.

`model` reads what a model needs, from its `inference.yml` or from `[parameters]`. `stages` makes
the model's input in codec processes. `pipeline` answers a request with these, `router` is the
endpoint, `evaluation` serves the offline commands, and `task` declares the task.
"""
