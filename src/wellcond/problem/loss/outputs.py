"""The tensors in what a model returns, and which of them its loss looks at."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from wellcond.errors import NoLoss

Loss = Callable[..., Any]
"""`loss(outputs, targets)`, or with several targets; a tensor, or several terms."""
LossOfTensors = Callable[[Sequence[Tensor], Any], Tensor]
"""A loss as a function of the tensors that it looks at and of the targets."""


TOTALS = ("loss", "total_loss", "total")
"""Names under which a dict of terms holds their sum."""


def own_loss(outputs: Any, targets: Any = None) -> Any:
    """The loss that a model computes itself: `.loss`, `["loss"]`, the first number of a tuple, or the output itself.

    Raises:
        NoLoss: The outputs hold none.
    """
    loss = getattr(outputs, "loss", None)
    if isinstance(outputs, Mapping) and loss is None:
        loss = terms_in(outputs) or None
    elif isinstance(outputs, (tuple, list)) and loss is None:
        loss = next((part for part in outputs if _is_number(part)), None)
    elif isinstance(outputs, Tensor):
        loss = outputs
    if loss is None or (isinstance(loss, Tensor) and loss.dim() and loss.numel() != 1):
        shape = f" of shape {tuple(outputs.shape)}" if isinstance(outputs, Tensor) else ""
        raise NoLoss(
            f"the loss is None, so the model has to return it, but it returns a {type(outputs).__name__}{shape} "
            'without a loss. Pass loss=…, or batches with what the model computes its loss from ("labels").'
        )
    return loss


def terms_in(value: Any) -> dict[str, Tensor]:
    """The terms of a loss that returns several, by their names in code; only the sum, if the loss returns it too.

    >>> terms_in({"recon": torch.tensor(2.0), "kl": torch.tensor(0.5)})
    {"['recon']": tensor(2.), "['kl']": tensor(0.5000)}
    """
    parts = _parts(value) if isinstance(value, (Mapping, tuple, list)) else {}
    terms = {name: part for name, part in parts.items() if _is_number(part)}
    if isinstance(value, Mapping):
        total = next((f"[{name!r}]" for name in TOTALS if f"[{name!r}]" in terms), None)
        return {total: terms[total]} if total else terms
    first, *others = [float(term.detach()) for term in terms.values()] or [0.0]
    is_sum = bool(others) and math.isclose(first, sum(others), rel_tol=1e-4)
    return dict([*terms.items()][:1]) if is_sum else terms


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point()


@dataclass(frozen=True)
class SeenOutputs:
    """The tensors of one batch's outputs that a loss depends on.

    Attributes:
        names: Names of the tensors, as they are written after `outputs`: `[0]`, `['aux']`, `.logits`.
        tensors: The tensors, with their graph.
        loss_of: The loss as a function of other values of these tensors, and of other targets.
    """

    names: list[str]
    tensors: list[Tensor]
    loss_of: LossOfTensors

    @property
    def only(self) -> Tensor | None:
        """The tensor that the loss depends on, if it is one; None if it is the loss that the model computed."""
        is_one = len(self.tensors) == 1 and self.tensors[0].dim() > 0
        return self.tensors[0] if is_one else None

    def loss_at(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss with other values of the one tensor."""
        return self.loss_of([outputs], targets)


def seen_outputs(loss: Loss, raw: Any, targets: Any) -> SeenOutputs:
    """The tensors in `raw` that `loss` depends on, by its gradients on copies, which leave the model's graph alone."""
    if isinstance(raw, Tensor):
        return SeenOutputs([""], [raw], lambda tensors, labels: loss(tensors[0], labels))
    named = {name: tensor for name, tensor in named_tensors(raw).items() if tensor.is_floating_point()}
    copies = _leaves(named.values())
    with torch.enable_grad():
        value = loss(with_tensors(raw, copies), targets)
    gradients: Sequence[Tensor | None] = [None] * len(copies)
    if isinstance(value, Tensor) and value.requires_grad:
        gradients = torch.autograd.grad(value.sum(), list(copies.values()), allow_unused=True)
    used = {key for key, gradient in zip(copies, gradients, strict=True) if gradient is not None}
    return picked(loss, raw, [name for name, tensor in named.items() if id(tensor) in used])


def picked(loss: Loss, raw: Any, names: Sequence[str]) -> SeenOutputs:
    """The outputs of a batch whose loss is known to depend on these tensors."""
    every = {"": raw} if isinstance(raw, Tensor) else named_tensors(raw)
    tensors = [every[name] for name in names if name in every]

    def loss_of(others: Sequence[Tensor], labels: Any) -> Tensor:
        changed = with_tensors(raw, {id(t): other for t, other in zip(tensors, others, strict=True)})
        value: Tensor = loss(changed, labels)
        return value

    return SeenOutputs(list(names), tensors, loss_of)


def differentiable(raw: Any) -> Any:
    """What a model returned, with its floating-point tensors as leaves of a new graph."""
    tensors = [raw] if isinstance(raw, Tensor) else list(named_tensors(raw).values())
    return with_tensors(raw, _leaves(t for t in tensors if t.is_floating_point()))


def _leaves(tensors: Iterable[Tensor]) -> dict[int, Tensor]:
    return {id(tensor): tensor.detach().requires_grad_() for tensor in tensors}


def named_tensors(value: Any) -> dict[str, Tensor]:
    """The tensors in a nest of containers and objects, each once, by their names in code: `[0]`, `.logits`."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    seen: set[int] = set()

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            tensors.setdefault(id(value), (name, value))
        elif id(value) not in seen:
            seen.add(id(value))
            for suffix, part in _parts(value).items():
                walk(name + suffix, part)

    walk("", value)
    return dict(tensors.values())


def with_tensors(value: Any, others: Mapping[int, Tensor]) -> Any:
    """A copy of a nest in which some tensors, by their ids, are replaced; the nest itself does not change."""
    known: dict[int, Any] = {}

    def rebuilt(value: Any) -> Any:
        if isinstance(value, Tensor):
            return others.get(id(value), value)
        if id(value) not in known:
            known[id(value)] = value  # a nest that contains itself keeps its old self inside
            before = _parts(value)
            after = {suffix: rebuilt(part) for suffix, part in before.items()}
            if any(after[suffix] is not before[suffix] for suffix in before):
                known[id(value)] = _assembled(value, list(after.values()))
        return known[id(value)]

    return rebuilt(value)


def _parts(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {f".{name}": part for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, (tuple, list)):
        return {f"[{i}]": part for i, part in enumerate(value)}
    return {f".{name}": part for name, part in _attributes(value).items()}


def _assembled(value: Any, parts: list[Any]) -> Any:
    if isinstance(value, tuple):
        return value._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, Mapping):
        if not hasattr(value, "__setitem__"):
            return dict(zip(value, parts, strict=True))
        changed = copy.copy(value)
        for key, part in zip(value, parts, strict=True):
            changed[key] = part
        return changed
    changed = copy.copy(value)
    if isinstance(value, list):
        changed[:] = parts
        return changed
    for name, part in zip(_attributes(value), parts, strict=True):
        object.__setattr__(changed, name, part)  # also of a frozen dataclass
    return changed


def _attributes(value: Any) -> dict[str, Any]:
    """Attributes of an output object: its own, slots, and tensors of its class; none of modules and classes."""
    if isinstance(value, (nn.Module, type)):
        return {}
    held: dict[str, Any] = {}
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if hasattr(value, name):
                held[name] = getattr(value, name)
        held |= {name: part for name, part in vars(kind).items() if isinstance(part, Tensor)}
    return held | dict(getattr(value, "__dict__", {}))
