"""A task for Paddlepool: a picture in, its labels out.

`task` declares the task and runs in the server's process, `picture` runs in codec processes.
"""
