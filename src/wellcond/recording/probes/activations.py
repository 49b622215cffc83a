"""Outputs of layers in a forward pass of its own, where hooks on the training do not see them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from wellcond.diagnosis.inspection.nonlinearities import FUNCTIONS, RECTIFIERS, SLOPES
from wellcond.network.taps import WatchedFunctions, tapped
from wellcond.problem.problem import Problem
from wellcond.recording.watching.activations import Outputs
from wellcond.results import Row


class ActivationProbe:
    """Sees the outputs of layers, and of functions such as `F.relu` after them."""

    def run(self, problem: Problem, step: int) -> list[Row]:
        """RMS of outputs, shares of dead units and of saturated values, distance of BatchNorm's statistics.

        Args:
            problem: Of one batch.
            step: The step that has just been taken.
        """
        outputs = Outputs(problem.model)

        def on_call(name: str, module: Any, x: Any, output: Any) -> None:
            with torch._C.DisableTorchFunction():  # the calls in here are not the model's
                outputs.see(name, module, x, output)

        def on_function(name: str, _args: Any, _kwargs: Any, output: Any) -> None:
            if not isinstance(output, Tensor):
                return
            with torch._C.DisableTorchFunction():
                if name in RECTIFIERS:
                    outputs.see_rectified(output)
                else:
                    outputs.see_bounded(name, output)

        watched = {function: name for function, name in FUNCTIONS.items() if name in RECTIFIERS or name in SLOPES}
        with problem.measuring(), torch.no_grad():
            (batch,) = [batch for _, batch in problem.data()]
            with tapped(outputs.sized, on_call), WatchedFunctions(watched, on_function):
                problem.forward(0, batch[0])
        reading = outputs.reading(step)
        return [] if reading is None else list(reading[1](reading[0].tolist()))
