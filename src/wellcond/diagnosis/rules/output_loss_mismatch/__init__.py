"""output-loss-mismatch: outputs that are not what the loss takes.

Wrong: `F.cross_entropy(model(x).softmax(1), y)`. Right: `F.cross_entropy(model(x), y)`.
"""

from wellcond.diagnosis.rules.output_loss_mismatch import (  # noqa: F401
    dimensions,
    domain,
    failing,
    pairing,
    sign,
    squashed,
)
