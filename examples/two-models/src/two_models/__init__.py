"""A task for Paddlepool over two models: a picture in, where its subject is and its colour out.

`task` declares the task and runs in the server's process, `crop` runs in its threads and `picture`
in codec processes.
"""
