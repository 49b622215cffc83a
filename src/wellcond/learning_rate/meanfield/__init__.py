"""Mean-field theory (wei2019): the largest learning rate from the architecture alone, at initialization.

In: an architecture in one line, a module or a `Problem`. Out: `Prediction`, λ_max of the Fisher matrix, the largest
stable rate 2(1+μ)/λ_max, and what each layer contributes.

    architecture.py ──────────────────────────────┐
    reader.py → signal.py, layer_rules.py, shape_rules.py ┴→ stages.py, feature_maps.py → prediction.py ← predict.py
                                                              moments.py, gram.py, gaussian.py

1. A network becomes a list of stages. `Architecture` writes them down; the reader records the forward pass of a module
   and turns it into stages call by call, by the rules for layers and for shapes.
2. Every stage maps second moments. Forward, with q̂ = E h² of one input and q̂_xy = E h(x)h(y) of two different ones,

       q_l = σ_w² q̂_{l−1} + σ_b²        q̂_l = E φ(z)²,  q̂_xy,l = E φ(z_x)φ(z_y),  (z_x, z_y) Gaussian with q_l, q_xy,l

   and backward, from the output to the input, with q̃ those of the gradient of one output,

       q̃_{l−1} = σ_w² q̃_l E[φ'(z)²]     q̃_xy,{l−1} = σ_w² q̃_xy,l E[φ'(z_x)φ'(z_y)]

   A norm divides z by its standard deviation first; BatchNorm also removes from the gradient its parts along 1 and z.
   `gaussian.py` has the expectations E; `Moments` and `Gram` are the two forms of a pair (q, q_xy).
3. `prediction.py` adds up the layers (claim 3.1): λ_max = Σ_l fan_in · q̂_xy,{l−1} · q̃_xy,l.
"""

from wellcond.learning_rate.meanfield.architecture import Architecture
from wellcond.learning_rate.meanfield.predict import predict
from wellcond.learning_rate.meanfield.prediction import LayerContribution, Prediction

__all__ = ["Architecture", "LayerContribution", "Prediction", "predict"]
