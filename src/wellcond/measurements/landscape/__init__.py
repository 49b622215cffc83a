"""The loss around the weights.

In: a `Problem` and directions in parameter space. Out: `landscape`, the loss and its gradient along a line, as for a
step of training; `loss_slice`, the loss on a line or a plane. Both walk in borrowed memory (points.py) along
directions.py: the gradient, random directions, eigenvectors of the Hessian, or tensors.
"""
