"""Several processes that train one model, and measure it together.

In: each process's own batches. Out: numbers over the batches of all. Rank 0 leads: it alone decides what is measured
next, and the others do their share of it when they are asked, so that clocks and rounding cannot lead them apart.
"""
