"""no-gradient: trainable weights that no step moves: no gradient reaches them, or the optimizer lacks them.

Wrong:
    self.layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
Right:
    self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
"""

from wellcond.diagnosis.rules.no_gradient import cut, held, partial, silent  # noqa: F401
