"""A training step of one's own: one function of the model and a batch that returns the loss.

It takes the place of the model's call and of the loss at once. So there are no outputs and no targets to look at, only
the loss, the layers that it goes through, and their gradients.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from wellcond.errors import InvalidProblem, NoLoss, Unsupported
from wellcond.network.calling import arguments_of
from wellcond.network.isolation.snapshot import Snapshot, kept
from wellcond.network.taps import bracketed
from wellcond.problem.loss.outputs import named_tensors, own_loss, terms_in, with_tensors

Step = Callable[[Any, Any], Any]
"""`training_step(model, batch)`, which returns the loss."""
ONLY_A_LOSS: Final = "a training step returns its loss alone"
WRITE_APART: Final = (
    "Write wc.Problem(model, loss, batches), with model(inputs) and loss(outputs, targets) apart, to have this too."
)


class NoTargets:
    """What stands in place of the targets in a batch of a training step; the class itself, not an instance."""


class TrainingStep:
    """A step in the place of a problem's loss: it is called with the model and a batch, and has returned the loss.

    Args:
        function: `training_step(model, batch)`.

    Raises:
        InvalidProblem: It is no function of a model and a batch.
    """

    def __init__(self, function: Step) -> None:
        if not callable(function):
            raise InvalidProblem(
                f"training_step is a {type(function).__name__}; write a function training_step(model, batch) that "
                "returns the loss."
            )
        known = arguments_of(function)
        if known.required > 2 or (known.most is not None and known.most < 2):
            raise InvalidProblem(
                f"training_step takes {known.required} arguments, but is called as training_step(model, batch); "
                "wrap it: lambda model, batch: …"
            )
        self.function = function
        self._losses: list[str] = []
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def run(self, model: nn.Module, batch: Any) -> Any:
        """What the step returns; state of other modules that it uses, such as a target network, stays as it is.

        Of several numbers only those with a gradient are returned, since an error rate next to the losses is for
        printing. A step may differentiate, for a derivative by its inputs or a gradient penalty, so it always makes a
        graph; where none is asked for, it is cut off at the end.

        Raises:
            NoLoss: The step trains the model itself, by `backward()`.
        """
        with kept(Snapshot([self.function], known=model.modules())), _backward_refused(model), torch.enable_grad():
            returned = self.function(model, batch)
        terms = terms_in(returned)
        if len(terms) > 1 and not self._losses:
            self._losses = [name for name, term in terms.items() if term.requires_grad]
        returned = self._losses_in(returned)
        if torch.is_grad_enabled():
            return returned
        return with_tensors(returned, {id(t): t.detach() for t in named_tensors(returned).values()})

    def loss_in(self, returned: Any) -> Any:
        """The loss in what the step returned for some outputs: one tensor, or those of several that have a gradient."""
        return own_loss(self._losses_in(returned))

    def _losses_in(self, returned: Any) -> Any:
        terms = terms_in(returned)
        return {name: terms[name] for name in self._losses} if self._losses else returned

    def __call__(self, returned: Any, _targets: Any = None) -> Any:
        """The loss in what the step returned: a number, `["loss"]` of a dict, or several terms, which are summed."""
        try:
            return own_loss(returned)
        except NoLoss:
            is_tensor = isinstance(returned, Tensor)
            form = f"Tensor of shape {tuple(returned.shape)}" if is_tensor else type(returned).__name__
            raise NoLoss(
                f"training_step returns a {form}; let it return the loss, a tensor with one number, without .item()."
            ) from None


@contextlib.contextmanager
def _backward_refused(model: nn.Module) -> Iterator[None]:
    """Raise at a `backward()`, before an optimizer inside the step can move the user's weights."""

    def refuse(_parameter: Tensor) -> None:
        raise NoLoss(
            "training_step calls backward(); let it end before that, and return the loss: backward() and the "
            "optimizer's step are made on copies."
        )

    params = [p for p in model.parameters() if p.requires_grad]
    handles = [p.register_post_accumulate_grad_hook(refuse) for p in params]  # type: ignore[no-untyped-call]
    gradients = [p.grad for p in params]
    for p in params:
        p.grad = None  # or backward() would add to the user's
    try:
        yield
    finally:
        for p, handle, gradient in zip(params, handles, gradients, strict=True):
            handle.remove()
            p.grad = gradient


def as_inputs(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The arguments of a call of the model, in the form that inputs have in a problem's batches."""
    if kwargs:
        return dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    return args[0] if len(args) == 1 and not isinstance(args[0], (tuple, list, Mapping)) else args


def arguments_in(model: nn.Module, run: Callable[[], Any]) -> Any:
    """What a step calls the model with, the first time: inputs in the form that a problem's batches have.

    Args:
        model: The model.
        run: Runs the step.

    Raises:
        Unsupported: The step does not call the model itself, only parts of it.
    """
    calls: list[Any] = []

    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(as_inputs(model, args, kwargs))

    with torch.no_grad(), bracketed([model], note, lambda _module, _output: None):
        run()
    if not calls:
        raise Unsupported(
            f"training_step calls parts of {type(model).__name__}, not the model itself: what the model takes is not "
            "known."
        )
    return calls[0]
