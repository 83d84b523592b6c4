"""Quality of the served models: figures measured on data, for `models verify --quality`.

`masks` and `labels` define the figures; training uses them too. `run` runs a served predictor. The
`quality` function of a task defines what to run and how to read the results. `report` formats the
figures and writes them into model cards.
"""
