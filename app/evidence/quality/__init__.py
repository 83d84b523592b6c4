"""How good the served models are: figures measured on data, for `models verify --quality`.

`masks` and `labels` define the figures, and training measures with them as well; `bench` runs a
served predictor; a task's own package says what to run and how to read it (its `quality` function);
`report` words the figures and `cards` writes them into model cards.
"""
