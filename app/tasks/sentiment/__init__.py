"""The task of `POST /sentiment`: texts in, labels with scores out.

`texts` says which texts are accepted, `pipeline` turns them into engine jobs and scores,
`router` is the endpoint, `task` the declaration of it all.
"""
