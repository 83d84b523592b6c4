"""Quality of the served models: figures measured on data, for `models verify --quality`.

A task defines what to run and how to judge the results; `run` runs a served predictor, `report`
formats the figures and writes them into model cards.
"""
