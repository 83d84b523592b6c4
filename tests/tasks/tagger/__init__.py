"""The task of `POST /tag`: a text in, the scripts that it is written in out.

`scripts` is the arithmetic, `pipeline` connects it to the engine, `router` is the endpoint, `task`
the declaration of it all. docs/new-task.md explains this package.
"""
