"""What is read of a training step while it runs. Nothing is computed with a graph, and nothing waits for a device.

In: a model and its optimizers. Out: readings, which become rows when they are fetched.

    layout.py       the layer of every parameter
    steps.py        hooks on the optimizers' steps: gradient norms as they are used, weight norms, relative updates
    backwards.py    hooks on a few parameters: gradients that were not cleared, accumulation, the norm before clipping
    activations.py  a hook on the calls of layers: size of outputs, dead and saturated units, BatchNorm's statistics
    repeats.py      batches that were just seen
    labels.py       whether all labels of a batch are alike

Only the hooks on optimizers stay; the others are there on the steps that are sampled.
"""
