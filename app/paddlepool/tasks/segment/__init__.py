"""The task of `POST /segment`: a picture in; its cut-out, mask, composite or labels out.

`request` has the options. `matte`, `masks`, `refine` and `foreground` contain the arithmetic, and
`stages` calls it in codec processes. `pipeline` answers a request with these, `router` is the
endpoint, and `task` declares the task. `semantic` reads semantic segmentation models, and
`evaluation` serves the offline commands.
"""
