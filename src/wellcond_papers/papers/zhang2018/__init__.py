"""The local Hessian in back-propagation: one file per figure or table."""
