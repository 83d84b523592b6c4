"""The task of `POST /ocr`: pictures in, lines of text with scores and corners out.

`request` has the options, and `paddlex` translates requests of PaddleX's clients. `pipeline` reads
the pages of a request one by one, each with a `reader`, with the models of `parts`. `stages` are
the calls into codec processes, and `crops` is the geometry of lines. `router` is the endpoint,
`evaluation` serves the offline commands, and `task` declares the task.
"""
