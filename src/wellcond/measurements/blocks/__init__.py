"""One block of a network at a time: its back-matching loss, its local Hessian, and the law of its spectrum (zhang2018).

In: a `Problem` and the name of a layer. Out: targets and updates of all blocks (`back_matching`), the second
derivatives of one as operators (`local_hessian`), and the spectrum that random weights would give (`marchenko_pastur`).
"""
