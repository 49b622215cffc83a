"""One block of a network at a time: its back-matching loss, its local Hessian, and the law of its spectrum (zhang2018).

In: a `Problem` and the name of a layer. Out: targets and updates of all blocks (`back_matching`), the second
derivatives of one as operators (`local_hessian`), and the spectrum that random weights would give (`marchenko_pastur`).

    block.py         a module or a range of a Sequential with its input z_{b−1} and output z_b
    block_call.py    its call on one batch, repeated with a graph of its own → curvature.py, closed_forms.py
    cuts.py          where a network can be cut into blocks → back_matching.py
"""
