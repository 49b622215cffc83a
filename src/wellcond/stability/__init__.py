"""How large the learning rate may be.

In: a problem, and an optimizer if there is one. Out: the largest stable learning rate with its error.
"""
