"""Evaluations: the rows of a run, scored, item by item and as a whole."""
