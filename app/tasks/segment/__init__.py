"""The task of `POST /segment`: a picture in; its cut-out, mask or composite out.

`request` reads what a client may request, `matte` has the arithmetic on masks, `stages` runs it in
codec processes, `pipeline` connects these to the engine, `router` is the endpoint, and `task`
declares the task.
"""
