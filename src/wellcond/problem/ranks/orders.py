"""Orders: what the process that leads tells the others to do, and how they do it until it ends the call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wellcond.errors import LostRank, NonFinite, WellcondError
from wellcond.network.calling import one_line
from wellcond.problem.ranks.team import Team

if TYPE_CHECKING:
    from wellcond.problem.problem import Problem

Order = Callable[..., Any]
"""Called in every process as `order(member, *args)`; what it returns in the process that leads is the answer."""
_orders: dict[str, Order] = {}
END = "end"
"""The order with which a call ends; its argument is the outcome."""


class Member:
    """What one process has for a call that is measured together.

    Args:
        team: The processes.
        problem: The problem of this process, over its own batches.
        has_data: Whether its batches are its own: processes that hold parts of one layer read the same.

    Attributes:
        state: What orders keep here for later orders of the same call.
    """

    def __init__(self, team: Team, problem: Problem, has_data: bool) -> None:
        self.team, self.problem, self.has_data = team, problem, has_data
        self.state: dict[Any, Any] = {}
        self._weights = _checksum(problem)

    def can_share(self, problem: Problem) -> bool:
        """Whether a pass over a problem's batches is the sum of passes over the processes' own problems."""
        own = self.problem
        is_same = problem.model is own.model and problem.loss is own.loss and problem.batchnorm == own.batchnorm
        return is_same and problem.dropout is None and _checksum(problem) == self._weights

    def ask(self, order: Order, *args: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """Have an order done by all processes, from the one that leads.

        Args:
            order: What is done.
            *args: Its arguments.
            tensors: Large tensors, which it gets as its last argument, if there are any.
        """
        self.team.tell((order.__name__, args, [(t.shape, t.dtype) for t in tensors]))
        if not tensors:
            return order(self, *args)
        return order(self, *args, self.team.share([t.contiguous() for t in tensors]))

    def serve(self) -> Any:
        """Do what the process that leads asks for, until it ends the call; returns how it ended."""
        while True:
            name, args, kinds = self.team.tell()
            if name == END:
                return args[0]
            device = self.problem.device
            tensors = self.team.share([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds])
            with contextlib.suppress(FailedElsewhere):
                _orders[name](self, *args, *([tensors] if tensors else []))


def _checksum(problem: Problem) -> tuple[int, float]:
    """Changes with the weights: version counters miss writes to `.data`, which a sum does not."""
    params = list(problem.params.values())
    return sum(p._version for p in params), float(sum(p.detach().double().sum() for p in params))


class FailedElsewhere(WellcondError, RuntimeError):
    """A share of the work has failed, in this process or another; the process that leads raises it."""


def order(function: Order) -> Order:
    """Register a function as an order, by its name."""
    _orders[function.__name__] = function
    return function


@contextlib.contextmanager
def shared_work(team: Team) -> Iterator[None]:
    """Around each process's share of the work, before shares are added: if one fails, it is raised in the first.

    The exception of the process that leads is its own, with its own class; that of another is named by its rank.
    """
    failure: Exception | None = None
    try:
        yield
    except LostRank:
        raise
    except Exception as error:  # the user's model and data may raise anything
        failure = error
    (failed,) = team.add([torch.tensor([0.0 if failure is None else 1.0])], "orders")
    if not float(failed):
        return
    messages = team.collect(None if failure is None else (isinstance(failure, NonFinite), one_line(failure)))
    if not team.leads:
        raise FailedElsewhere
    if failure is not None:
        raise failure
    text = "; ".join(f"rank {rank}: {each[1]}" for rank, each in enumerate(messages) if each)
    raise (NonFinite if all(each[0] for each in messages if each) else FailedElsewhere)(text)
