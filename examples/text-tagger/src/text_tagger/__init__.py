"""A task for Paddlepool, `POST /tag`: a text in, the scripts that it is written in out.

`task` is the endpoint, the pipeline and their declaration, `scripts` the arithmetic in threads.
"""
