"""output-loss-mismatch: outputs that are not what the loss takes: their shape, range, sign, or pairing with targets.

Wrong:
    loss = F.cross_entropy(model(x).softmax(1), y)
Right:
    loss = F.cross_entropy(model(x), y)
"""

from wellcond.diagnosis.rules.output_loss_mismatch import (  # noqa: F401
    apart,
    beyond_bound,
    dimensions,
    domain,
    failing,
    one_for_all,
    pairing,
    sign,
    squashed,
)
