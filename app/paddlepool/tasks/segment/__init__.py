"""The task of `POST /segment`: a picture in; its cut-out, mask, composite or labels out.

`request` reads a request's options. `matte`, `refine` and `foreground` contain the arithmetic, and
`stages` calls it in codec processes. `pipeline` connects the stages to the engine, `router` is the
endpoint, and `task` declares the task.
"""
