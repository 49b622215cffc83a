"""A model, its loss and its data, evaluated without changing any of them.

In: a model, a loss and batches. Out: outputs, losses and gradients, their cost, and what went wrong and why.
"""
