"""The task of `POST /ocr`: pictures in, lines of text with scores and corners out.

`request` has the options, and `paddlex` translates requests of PaddleX's clients. `pipeline` reads
the pages of a request one after another, `reader` a single page, with the models of `parts`.
`stages` are the calls into codec processes, and `crops` cuts out the lines. `router` is the
endpoint, `evaluation` serves the offline commands, and `task` declares the task.
"""
