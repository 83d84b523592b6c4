"""The task of `POST /classify`: a picture in, labels with scores out.

`model` reads what a model needs, from its `inference.yml` or from `[parameters]`. `stages` makes
the model's input in codec processes. `pipeline` connects it to the engine, `router` is the
endpoint, and `task` declares the task.
"""
