"""How large the learning rate may be.

    limits/     measured from the curvature at the current weights: `max_lr`
    meanfield/  predicted from the architecture at initialization, before there are weights: `meanfield.predict`
    race/       tried out with copies of the model and the optimizer: `suggest_lr`

In: a `Problem` and an optimizer, or an architecture. Out: a rate, with an interval and what it rests on.
"""
