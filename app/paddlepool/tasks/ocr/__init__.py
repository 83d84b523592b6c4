"""The task of `POST /ocr`: pictures in, lines of text with scores and corners out.

`request` reads a request's options, `paddlex` the requests of PaddleX's clients. `pipeline`
connects the detector and the recogniser, `stages` are its calls into codec processes, `crops` the
geometry of lines, `router` is the endpoint, and `task` declares the task.
"""
