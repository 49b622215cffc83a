"""`class-dimension`: softmax over the classes, not over the examples of a batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from wellcond.network.recording import Call
from wellcond.remedies.forward_calls import argument, calls_of
from wellcond.remedies.remedy import remedy
from wellcond.remedies.rewired import Rewired, own_name
from wellcond.remedies.setup import Setup


@remedy("class-dimension", "output", rules=("output-loss-mismatch", "wrong-softmax-dimension"))
def class_dimension(setup: Setup) -> Setup | None:
    """Takes softmax over the classes: over dimension 0, the examples of a batch compete with each other."""
    calls = [call for call in calls_of(setup) if call.name in ("softmax", "log_softmax")]
    wrong = [call for call in calls if argument(call, 1, "dim") == 0]
    modules = dict(setup.problem.model.named_modules())
    if not wrong:
        return None
    if all(isinstance(modules[call.inside], (nn.Softmax, nn.LogSoftmax)) for call in wrong):
        dims = {call.inside: _class_dim(call) for call in wrong}

        def set_dims(model: nn.Module) -> nn.Module:
            for name, dim in dims.items():
                vars(model.get_submodule(name))["dim"] = dim
            return model

        lines = [f'model.get_submodule("{own_name(name)}").dim = {dim}' for name, dim in dims.items()]
        return setup.with_model(set_dims, *lines, is_new=False)

    def over_classes(function: Any, x: Tensor, *_: Any, **__: Any) -> Any:
        return function(x, -1 if x.dim() < 4 else 1)

    functions = sorted({call.name for call in wrong})
    line = (
        f"# in forward: {' and '.join(functions)} over dim={_class_dim(wrong[0])}, the classes, not over the examples"
    )
    return setup.with_model(lambda model: Rewired(model, functions, over_classes), line, is_new=False)


def _class_dim(call: Call) -> int:
    """The channels of an image, the last dimension of anything else."""
    return -1 if len(call.takes[0].shape) < 4 else 1
