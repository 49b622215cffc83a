"""The stress suite: random problems in random states of the user's, against dense float64 references.

It needs torch, numpy and wellcond alone, so that it also runs on a machine where nothing else is installed:
`PYTHONPATH=src python -m stress --cases 2000 --seed 0 --device cuda`.
"""
