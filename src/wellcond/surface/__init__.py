"""The loss around the weights: walks, slices, directions.

In: a problem and a direction. Out: losses and gradient changes at other points; the weights stay where they are.
"""
