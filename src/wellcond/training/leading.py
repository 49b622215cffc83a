"""Calls that several processes make together: rank 0 does them over the batches of all, the others do their shares."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from wellcond.errors import LostRank, Unsupported, WellcondError
from wellcond.network.calling import one_line
from wellcond.network.isolation.isolation import loader_generators_kept, rng_kept
from wellcond.network.whole import memo_of
from wellcond.problem.problem import Problem
from wellcond.problem.ranks.orders import END, CallEnded, Failed, Member, interrupts_held, shared_work
from wellcond.problem.ranks.rank_source import RankSource
from wellcond.training.optimizers import deep_copy

P = ParamSpec("P")
T = TypeVar("T")


def led(call: Callable[P, T]) -> Callable[P, T]:
    """Let a function of a problem be called by all processes of a training, over the batches of all.

    Rank 0 makes the call, and the others do their shares of it until it has ended; all return the same result, or raise
    the same exception. For a model that one process trains, the function is called as it is. Messages call `_treat`
    what a user calls it, `treat`: the public function has checked its settings before the processes meet.
    """

    @functools.wraps(call)
    def leading(*args: P.args, **kwargs: P.kwargs) -> T:
        problem = args[0] if args else kwargs.get("problem")
        if not isinstance(problem, Problem) or problem.team is None:
            return call(*args, **kwargs)
        result: T = _Together(problem, call.__name__.lstrip("_")).run(call, args, kwargs)
        return result

    return leading


class _Together:
    """One call of all processes."""

    def __init__(self, problem: Problem, name: str) -> None:
        assert problem.team is not None
        self.problem, self.team, self.name = problem, problem.team, name

    def run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make the call in the process that leads, and serve it in the others.

        Raises:
            LostRank: A process has ended, or does not make the call.
            InvalidProblem: The processes make different calls.
            Unsupported: It is made inside of another call, of which only this process knows.
        """
        self.team.meet(self.name, ", ".join([repr(self.problem), *map(self._described, _optimizers_in(args, kwargs))]))
        self.team.is_busy = True
        try:
            with rng_kept(self.problem.device), loader_generators_kept(self.problem.loader):
                outcome = self._outcome(call, args, kwargs)
        except CallEnded as end:
            raise LostRank(str(end)) from end.__cause__
        except BaseException:  # of this process alone: the others must not wait for it
            self.team.leave()
            raise
        finally:
            self.team.is_busy = False
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _outcome(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the call returns or raises, the same in all processes."""
        outcome: Any = None
        try:
            with shared_work(self.team):
                args, kwargs = self._with_whole_optimizers(args, kwargs)
        except Failed as failed:
            outcome = failed.error
        shares = self.team.everyone(self.problem.data_share)
        firsts = {share: rank for rank, share in reversed([*enumerate(shares)])}
        content = _Content(self.problem, args, kwargs)
        with contextlib.closing(Member(self.team, self.problem, sorted(firsts.values()))) as member:
            if not self.team.leads:
                return content.unpacked(member.serve())
            if outcome is None:
                outcome = self._led(member, call, args, kwargs)
        if not self.team.is_lost:  # as it is if this process was interrupted in the middle of a message
            with interrupts_held():
                self.team.tell((END, (content.packed(outcome),), ()))
        return outcome

    def _led(self, member: Member, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What the call returns or raises in the process that leads, over the batches of all."""
        before = self.problem.cost
        try:
            problem = self.problem.over_all(RankSource(member, self.problem.couples_examples))
            args = [problem if value is self.problem else value for value in args]
            kwargs = {name: problem if value is self.problem else value for name, value in kwargs.items()}
            with member.leading():
                outcome = call(*args, **kwargs)
            # passes over the batches of this process are counted by its own problem, and by that of all
            self.problem.count_copies(problem.cost - (self.problem.cost - before))
            return outcome
        except CallEnded:
            raise
        except BaseException as error:  # also Ctrl-C: the others must not wait
            return error

    def _described(self, optimizer: Optimizer) -> str:
        """The name of an optimizer; if it is gathered, also of how many parameters it has a state."""
        name = type(optimizer).__name__
        return name if self.problem.sharded is None else f"{name} with the states of {len(optimizer.state)} parameters"

    def _with_whole_optimizers(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with copies of optimizers that hold whole parameters where the model's are sharded."""
        sharded = self.problem.sharded
        if sharded is None:
            return args, kwargs
        self.problem.refresh()
        optimizers = _optimizers_in(args, kwargs)
        states = [t for each in optimizers for t in tree_leaves(list(each.state.values())) if isinstance(t, Tensor)]
        memo = memo_of(sharded, self.problem.model, states) | {id(self.problem): self.problem}
        for optimizer in optimizers:
            memo[id(optimizer)] = deep_copy(optimizer, memo)
        whole = {id(leaf): copy.deepcopy(leaf, memo) for leaf in tree_leaves((args, kwargs)) if _optimizer_of(leaf)}

        def replaced(value: Any) -> Any:
            if id(value) in whole:
                return whole[id(value)]
            if isinstance(value, (list, tuple)):
                return type(value)(map(replaced, value))
            return {key: replaced(each) for key, each in value.items()} if isinstance(value, dict) else value

        return tuple(map(replaced, args)), replaced(kwargs)


def _optimizers_in(args: Any, kwargs: Any) -> list[Optimizer]:
    return [each for each in map(_optimizer_of, tree_leaves((args, kwargs))) if each is not None]


def _optimizer_of(value: Any) -> Optimizer | None:
    """An optimizer, or that of a scheduler."""
    inside = value if isinstance(value, Optimizer) else getattr(value, "optimizer", None)
    return inside if isinstance(inside, Optimizer) else None


class _Content:
    """A result that is sent to another process, which has the problem, the optimizer and the callbacks already."""

    def __init__(self, problem: Problem, args: Any, kwargs: Any) -> None:
        self.problem = problem
        self._here = {f"argument {place}": value for place, value in enumerate(tree_leaves((args, kwargs)))}
        self._here |= {"model": problem.model, "loss": problem.loss}

    def packed(self, outcome: Any) -> bytes:
        """The bytes of an outcome; if it cannot be sent, of an error that says so."""
        try:
            return self._dumped(outcome)
        except Exception as error:  # whatever an attribute of a result raises when it is pickled
            if isinstance(outcome, BaseException):
                return self._dumped(WellcondError(f"{type(outcome).__name__}: {outcome}"))
            return self._dumped(
                Unsupported(f"the result is in rank 0 alone, since it cannot be sent: {one_line(error)}")
            )

    def unpacked(self, content: bytes) -> Any:
        """The outcome that another process has packed, with what is here in place of what was there."""
        return _Reader(content, self._here | {"problem": self.problem}, self.problem.device).load()

    def _dumped(self, outcome: Any) -> bytes:
        buffer = io.BytesIO()
        _Writer(buffer, {id(value): name for name, value in self._here.items() if _is_named(value)}).dump(outcome)
        return buffer.getvalue()


class _Writer(pickle.Pickler):
    """Packs an outcome for other processes.

    Args:
        buffer: Where it is written.
        names: Names of objects that the others have too, by their `id`.
    """

    def __init__(self, buffer: io.BytesIO, names: dict[int, str]) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._names = names

    def persistent_id(self, value: Any) -> str | None:
        return "problem" if isinstance(value, Problem) else self._names.get(id(value))

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):  # whose class may be made with other arguments than its message
            return _exception, (type(value), value.args, vars(value))
        return NotImplemented


def _exception(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    return error


class _Reader(pickle.Unpickler):
    """Reads what another process has packed: tensors on its GPU come to the device of this process.

    Args:
        content: What was packed.
        here: What is in place of objects of the other process, by name.
        device: The device.
    """

    def __init__(self, content: bytes, here: dict[str, Any], device: torch.device) -> None:
        super().__init__(io.BytesIO(content))
        self._here, self._device = here, device

    def persistent_load(self, name: Any) -> Any:
        return self._here.get(name)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return self._storage
        return super().find_class(module, name)

    def _storage(self, content: bytes) -> Any:
        def on_own(storage: Any, location: str) -> Any:
            return storage if location == "cpu" else storage.to(device=self._device)

        return torch.load(io.BytesIO(content), on_own, weights_only=False)


def _is_named(value: Any) -> bool:
    """Whether a value is an object with an identity, and no number or word."""
    return isinstance(value, (nn.Module, Optimizer)) or _optimizer_of(value) is not None or callable(value)
