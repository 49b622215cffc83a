"""Optimizers that are remedies: BNP over any optimizer, scale-amended SGD, LARS and LSALR.

In flow a model, an optimizer and the passes of a training loop; out flow steps. The update rules are pure functions
(`precondition_`, `amending_scales`, `lars_scales`, `lsalr_scales`), the optimizers thin classes around them.
"""
