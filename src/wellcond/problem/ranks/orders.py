"""Orders: what the process that leads tells the others to do, and how they do it until it ends the call."""

from __future__ import annotations

import contextlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from wellcond.errors import LostRank, NonFinite, WellcondError
from wellcond.network.calling import one_line
from wellcond.network.isolation.arithmetic import precision_now
from wellcond.problem.loss.losses import sums_are_taken
from wellcond.problem.ranks.team import Team

if TYPE_CHECKING:
    from wellcond.problem.problem import Problem

Order = Callable[..., Any]
"""Called in every process as `order(member, *args)`; what it returns in the process that leads is the answer."""
_orders: dict[str, Order] = {}
_leading: list[Member] = []
"""This process, while it leads a call."""
BETWEEN_LOOKS = 5.0
"""Seconds after which a process that computes by itself looks whether the others are still there."""
END = "end"
"""The order with which a call ends; its argument is the outcome."""


class Member:
    """What one process has for a call that is measured together.

    Args:
        team: The processes.
        problem: The problem of this process, over its own batches.
        trainers: Ranks of the processes that have batches of their own: those that hold parts of one layer read the
            same.

    Attributes:
        has_data: Whether this process is one of them.
        state: What orders keep here for later orders of the same call.
    """

    def __init__(self, team: Team, problem: Problem, trainers: Sequence[int]) -> None:
        self.team, self.problem, self.trainers = team, problem, trainers
        self.has_data = team.rank in trainers
        self.state: dict[Any, Any] = {}
        self._weights = _checksum(problem)
        self._is_asking = False
        self._asked = time.monotonic()

    @contextlib.contextmanager
    def leading(self) -> Iterator[None]:
        """Around a call that this process makes for all."""
        _leading.append(self)
        try:
            yield
        finally:
            _leading.pop()

    def look(self) -> None:
        """See that the others are still there, if they have not been asked for a while."""
        if not self._is_asking and time.monotonic() > self._asked + BETWEEN_LOOKS:
            self.ask(answer)

    def can_share(self, problem: Problem) -> bool:
        """Whether a pass over a problem's batches is the sum of passes over the processes' own problems, as of now."""
        own = self.problem
        is_same = problem.model is own.model and problem.loss is own.loss and problem.batchnorm == own.batchnorm
        # which the others do not know
        is_plain = problem.dropout is None and precision_now() is None and not sums_are_taken()
        return is_same and is_plain and _checksum(problem) == self._weights

    def close(self) -> None:
        """End what orders have begun to read."""
        for value in self.state.values():
            if isinstance(value, Generator):
                value.close()
        self.state.clear()

    def ask(self, order: Order, *args: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """Have an order done by all processes, from the one that leads.

        Args:
            order: What is done.
            *args: Its arguments.
            tensors: Large tensors, which it gets as its last argument, if there are any.

        Raises:
            CallEnded: A process is lost.
        """
        with interrupts_held(), self._asking():
            try:
                self.team.tell((order.__name__, args, [(t.shape, t.dtype) for t in tensors]))
                shared = self.team.share(tensors)
                return order(self, *args, *([shared] if tensors else []))
            except Failed as failed:
                error = failed.error
            except LostRank as lost:
                raise CallEnded(str(lost)) from lost
            except BaseException:  # the others may wait for a message that will not come
                self.team.leave()
                raise
        raise error

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        self._is_asking = True
        try:
            yield
        finally:
            self._is_asking, self._asked = False, time.monotonic()

    def serve(self) -> Any:
        """Do what the process that leads asks for, until it ends the call; returns how it ended."""
        with interrupts_held(are_for_first=True):
            try:
                while True:
                    name, args, kinds = self.team.tell()
                    if name == END:
                        return args[0]
                    device = self.problem.device
                    empty = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in kinds]
                    tensors = self.team.share(empty)
                    with contextlib.suppress(Failed):
                        _orders[name](self, *args, *([tensors] if tensors else []))
            except BaseException:
                self.team.leave()
                raise


def _checksum(problem: Problem) -> tuple[int, float]:
    """Changes with the weights: version counters miss writes to `.data`, which a sum does not."""
    params = list(problem.params.values())
    return sum(p._version for p in params), float(sum(p.detach().double().sum() for p in params))


class CallEnded(BaseException):
    """A process is lost. Nothing inside of a call may go on without it, as it does after an `Exception` of a part."""


class Failed(Exception):
    """A share of the work has failed, in this process or another. All of them know, and go on with the next order.

    Args:
        error: What the process that leads raises.
    """

    def __init__(self, error: Exception) -> None:
        self.error = error


class FailedElsewhere(WellcondError, RuntimeError):
    """A share of the work has failed in another process, which the message names."""


class Failure(NamedTuple):
    """What another process tells of an exception."""

    message: str
    is_not_finite: bool


def order(function: Order) -> Order:
    """Register a function as an order, by its name."""
    _orders[function.__name__] = function
    return function


def look_after_others() -> None:
    """Called where this process computes: if it leads others, one that has ended is noticed.

    Raises:
        CallEnded: One has ended.
    """
    if _leading:
        _leading[-1].look()


@order
def answer(member: Member) -> None:
    """Show that this process is there."""
    member.team.collect(None)


@contextlib.contextmanager
def shared_work(team: Team) -> Iterator[None]:
    """Around each process's share of the work, before shares are added: if one fails, none goes on.

    Raises:
        Failed: A share has failed.
    """
    error = None
    try:
        yield
    except LostRank:
        raise
    except Exception as exception:  # the user's model and data may raise anything
        error = exception
    (failed,) = team.add([torch.tensor([0.0 if error is None else 1.0])], "orders")
    if float(failed):
        raise Failed(_first_error(error, team.collect(_told(error))))


def answers_of_all(member: Member, function: Callable[[], Any]) -> list[Any]:
    """What a function returns in every process, by rank, for the one that leads; others get none.

    Raises:
        Failed: It has failed in one of them.
    """
    error, content = None, b""
    try:
        content = pickle.dumps(function(), pickle.HIGHEST_PROTOCOL)
    except Exception as exception:  # of the user's data
        error = exception
    answers = member.team.collect((_told(error), content))
    if any(failure is not None for failure, _ in answers):
        raise Failed(_first_error(error, [failure for failure, _ in answers]))
    return [pickle.loads(content) for _, content in answers]


def _told(error: Exception | None) -> Failure | None:
    if error is None:
        return None
    name = "" if isinstance(error, WellcondError) else f"{type(error).__name__}: "
    return Failure(name + one_line(error), isinstance(error, NonFinite))


def _first_error(error: Exception | None, failures: Sequence[Failure | None]) -> Exception:
    """The exception of this process, with its own class; or one that names the others'."""
    if error is not None:
        return error
    failed = {rank: failure for rank, failure in enumerate(failures) if failure is not None}
    text = "; ".join(f"rank {rank}: {failure.message}" for rank, failure in failed.items())
    return NonFinite(text) if all(failure.is_not_finite for failure in failed.values()) else FailedElsewhere(text)


@contextlib.contextmanager
def interrupts_held(*, are_for_first: bool = False) -> Iterator[None]:
    """Ctrl-C waits until the messages of an order are through: half of them would leave the other processes waiting.

    Args:
        are_for_first: Whether it is left to the process that leads, which gets it too and ends the call for all.
    """
    own = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or own is None:  # None: not one of Python's
        yield
        return
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, own)
        if interrupts and not are_for_first:
            signal.raise_signal(signal.SIGINT)
