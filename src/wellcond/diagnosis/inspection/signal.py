"""What the inspection knows of the output of one module, or of one nonlinearity."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Signal:
    """Output of one module, or of a nonlinearity, and the gradient with respect to it.

    Attributes:
        name: Name of the module; for a nonlinearity, that of the last weighted layer, norm or module with a matrix of
            its own before it, or around it.
        kind: Type of the module, or name of the function.
        is_weighted: Whether it is a layer with a weight: linear, convolutional, recurrent, attention or embedding.
        is_nonlinearity: Whether it is a function such as ReLU.
        units: Units of its output.
        rows: Rows seen.
        calls: Calls in one pass.
        rms: √(mean h²) of its output.
        variation: E‖h − E h‖² / E‖h‖² over examples, for a layer with a weight: 0 if all are mapped alike.
        dead: (units,), whether a ReLU's output is 0 in every row; empty for others, and where values are not finite.
        full: (units,), whether a ReLU's output is positive in every row; empty for others, and where values are not
            finite.
        saturated: Share of values at which a bounded nonlinearity is flat; None for others, and where values are not
            finite.
        not_finite: Share of values that are NaN or infinite.
        has_finite_input: Whether its input was finite.
        gradient: RMS over the examples of ‖∂ℓ/∂h‖, ℓ the example's own loss; None if no gradient came back.
        sensitivity: RMS over the examples of ‖∂ℓ/∂h‖·‖h‖: effect of a relative change of h on the loss. A norm or a
            pooling after the layer leaves it as it is.
        gradient_over_time: (steps,), ‖∂ℓ/∂x_t‖ for every step t of a recurrent layer, or ‖∂ℓ/∂h_t‖ of the outputs of
            a layer that is called again and again, such as a cell in a loop; None for others.
        after: Layers with weights that are the last ones before it, by the graph; several where paths meet.
        is_after_parameters: Whether trainable parameters other than a layer's come before it, as those of a recurrence
            that the model writes out; False where another layer comes before it.
        is_blank: Whether it gives every example the same although its inputs differ, in all of its calls, as a norm
            over single values does.
        taken: RMS of what differs between the examples in its input, for a layer with a weight.
        phase: The same of the argument of a sine or cosine after it; None if there is none.
    """

    name: str
    kind: str
    is_weighted: bool
    is_nonlinearity: bool
    units: int
    rows: int
    calls: int
    rms: float
    variation: float | None
    dead: Tensor
    full: Tensor
    saturated: float | None
    not_finite: float
    has_finite_input: bool
    gradient: float | None = None
    sensitivity: float | None = None
    gradient_over_time: Tensor | None = None
    after: tuple[str, ...] = ()
    is_after_parameters: bool = False
    is_blank: bool = False
    taken: float | None = None
    phase: float | None = None
