"""torch's optimizers as linear filters of the gradient, from which their largest stable learning rates follow.

With its preconditioner P held as it is, an optimizer steps by θ ← θ − η P⁻¹ F g, where the filter F over the past
gradients is its momentum. On the quadratic model of the loss, g = H θ, a mode that goes as zᵗ obeys

    (z − 1) θ = −η F(z) P⁻¹ H θ.

Its amplitude begins to grow where it flips its sign at every step, z = −1:

    η = 2 / (F(−1) λ_max(P^{−½} H P^{−½})).

As η grows from 0 no other point z ≠ 1 of the unit circle is reached: on its upper half Im (z − 1)/F(z) > 0 for every
filter below, so also for any mix of them among the parameters, while −η xᴴP^{−½}HP^{−½}x is real. Momentum μ thus gives
2(1+μ)/λ_max, and 2(1+β₁)/((1−β₁) λ_max), which is 38/λ_max, belongs to Adam (Cohen et al. 2022).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RMSprop

from wellcond.errors import Unsupported

Group = Mapping[str, Any]
State = Mapping[str, Any]
Rule = Callable[[Group, State, Tensor], tuple[float, Tensor | float]]
"""(group, state of a parameter, its gradient now) → F(−1) and P.

The gradient is the one that the optimizer works with: of a maximized loss its negative, and with weight decay added. It
matters where the parameter has no state yet: P is then what the first step would make of it.
"""

UNKNOWN = """\
the step of {optimizer} is not known, and so neither is its largest stable learning rate. Known are
{known}.
For gradient descent with momentum, write  wc.max_lr(problem, momentum=0.9)."""


def rule_of(optimizer: Optimizer) -> Rule:
    """The rule of an optimizer's type, or of the type that it inherits its step from.

    Raises:
        Unsupported: There is no rule for it.
    """
    for kind in type(optimizer).__mro__:
        if kind in RULES and inspect.unwrap(type(optimizer).step) is inspect.unwrap(kind.step):
            return RULES[kind]
    known = ", ".join(kind.__name__ for kind in RULES)
    raise Unsupported(UNKNOWN.format(optimizer=type(optimizer).__name__, known=known))


def momentum_of(group: Group) -> float:
    """μ, or β₁ of an exponential average."""
    return float(group["betas"][0] if "betas" in group else group.get("momentum", 0.0))


# F(−1)


def response_of_sum(momentum: float, dampening: float = 0.0) -> float:
    """Of v ← μv + (1−τ)g: F(z) = (1−τ) z/(z − μ)."""
    return (1 - dampening) / (1 + momentum)


def response_of_average(beta: float) -> float:
    """Of m ← βm + (1−β)g."""
    return response_of_sum(beta, dampening=beta)


# rules


def sgd(group: Group, _state: State, _gradient: Tensor) -> tuple[float, float]:
    """Momentum, dampening, or Nesterov's form; P is 1."""
    mu = float(group["momentum"])
    if group["nesterov"]:  # g + μv
        return 1 + mu * response_of_sum(mu), 1.0
    return response_of_sum(mu, float(group["dampening"]) if mu else 0.0), 1.0


def adam(group: Group, state: State, gradient: Tensor) -> tuple[float, Tensor]:
    """An average of gradients over the root of an average of squares, with its bias corrected."""
    beta1, beta2 = map(float, group["betas"])
    mean_square = gradient.square()
    if state:
        v = state["max_exp_avg_sq" if group.get("amsgrad") else "exp_avg_sq"]
        mean_square = v.double() / (1 - beta2 ** float(state["step"]))
    return response_of_average(beta1), mean_square.sqrt() + group["eps"]


def nadam(group: Group, state: State, gradient: Tensor) -> tuple[float, Tensor]:
    """Adam with Nesterov's form of the average, whose momentum changes from step to step."""
    average, diagonal = adam(group, state, gradient)
    t = float(state["step"]) + 1 if state else 1.0
    mu, mu_next = (momentum_of(group) * (1 - 0.5 * 0.96 ** (k * group["momentum_decay"])) for k in (t, t + 1))
    return 1 - mu + mu_next * average, diagonal  # (1−μ_t) g + μ_{t+1} m


def adamax(group: Group, state: State, gradient: Tensor) -> tuple[float, Tensor]:
    """An average of gradients over a decaying maximum."""
    diagonal = state["exp_inf"].double() if state else gradient.abs() + group["eps"]
    return response_of_average(momentum_of(group)), diagonal


def rmsprop(group: Group, state: State, gradient: Tensor) -> tuple[float, Tensor]:
    """A sum of gradients, each divided by the root of an average of squares."""
    alpha = float(group["alpha"])
    mean_square = state["square_avg"].double() if state else (1 - alpha) * gradient.square()
    if group["centered"]:
        mean = state["grad_avg"].double() if state else (1 - alpha) * gradient
        mean_square = (mean_square - mean.square()).clamp_min(0)
    return response_of_sum(momentum_of(group)), mean_square.sqrt() + group["eps"]


def adagrad(group: Group, state: State, gradient: Tensor) -> tuple[float, Tensor]:
    """The gradient over the root of the sum of squares, with a decaying lr."""
    t, total = float(state["step"]), state["sum"].double()
    if not t:
        total = total + gradient.square()
    return 1.0, (total.sqrt() + group["eps"]) * (1 + t * group["lr_decay"])


RULES: dict[type[Optimizer], Rule] = {
    SGD: sgd,
    Adam: adam,
    AdamW: adam,
    NAdam: nadam,
    Adamax: adamax,
    RMSprop: rmsprop,
    Adagrad: adagrad,
}
