"""What a network does: small experiments on its first batch, which ask what an output or the loss depends on.

In: a problem. Out: a `Behavior`, which rules judge. An experiment changes one thing, passes the batch through again and
compares, so that no rule needs the name of a module or a function. `behavior.py` lists them all, with their cost.
"""
