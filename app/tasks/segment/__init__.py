"""The task of `POST /segment`: a picture in; its cut-out, mask or composite out.

`request` says what a client may ask for, `matte` is the arithmetic on masks, `stages` runs it in
codec processes, `pipeline` connects those to the engine, `router` is the endpoint,
`task` the declaration of it all.
"""
