"""Prediction: what the next run of a kind of task will need, from what earlier runs have used."""
