"""Calls that several processes make together: rank 0 does them over the batches of all, the others do their shares."""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from wellcond.errors import LostRank, Unsupported, WellcondError
from wellcond.network.calling import one_line
from wellcond.network.isolation.isolation import rng_kept
from wellcond.network.whole import memo_of, refresh
from wellcond.problem.problem import Problem
from wellcond.problem.ranks.orders import END, Member
from wellcond.problem.ranks.rank_source import RankSource
from wellcond.training.optimizers import deep_copy

P = ParamSpec("P")
T = TypeVar("T")


def led(call: Callable[P, T]) -> Callable[P, T]:
    """Let a function of a problem be called by all processes of a training, over the batches of all.

    Rank 0 makes the call, and the others do their shares of it until it has ended; all return the same result, or raise
    the same exception. For a model that one process trains, the function is called as it is.
    """

    @functools.wraps(call)
    def leading(*args: P.args, **kwargs: P.kwargs) -> T:
        problem = args[0] if args else kwargs.get("problem")
        if not isinstance(problem, Problem) or problem.team is None or problem.team.is_busy:
            return call(*args, **kwargs)
        result: T = _Together(problem, call.__name__).run(call, args, kwargs)
        return result

    return leading


class _Together:
    """One call of all processes."""

    def __init__(self, problem: Problem, name: str) -> None:
        assert problem.team is not None
        self.problem, self.team, self.name = problem, problem.team, name

    def run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Make the call in the process that leads, and serve it in the others."""
        self.team.meet(self.name)
        self.team.is_busy = True
        try:
            with rng_kept(self.problem.device):
                args, kwargs = self._with_whole_optimizers(args, kwargs)
                shares = self.team.everyone(self.problem.data_share)
                firsts = {share: rank for rank, share in reversed([*enumerate(shares)])}
                trainers = sorted(firsts.values())
                member = Member(self.team, self.problem, self.team.rank in trainers)
                member.state["trainers"] = trainers
                if not self.team.leads:
                    return self._outcome(_Content(self.problem, args, kwargs).unpacked(member.serve()))
                return self._lead(call, member, args, kwargs)
        finally:
            self.team.is_busy = False

    def _lead(self, call: Callable[..., Any], member: Member, args: Any, kwargs: Any) -> Any:
        outcome: Any = None
        try:
            problem = self.problem.over_all(RankSource(member, self.problem.couples_examples))
            before = problem.cost
            kwargs = {name: problem if value is self.problem else value for name, value in kwargs.items()}
            outcome = call(*(problem if value is self.problem else value for value in args), **kwargs)
            self.problem.count_copies(problem.cost - before)
        except LostRank:
            raise
        except BaseException as error:  # also Ctrl-C: the others must not wait
            outcome = error
        self.team.tell((END, (_Content(self.problem, args, kwargs).packed(outcome),), ()))
        return self._outcome(outcome)

    def _outcome(self, outcome: Any) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _with_whole_optimizers(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments, with copies of optimizers that hold whole parameters where the model's are sharded."""
        sharded = self.problem.sharded
        if sharded is None:
            return args, kwargs
        refresh(self.problem.model, sharded)
        optimizers = [each for each in map(_optimizer_of, tree_leaves((args, kwargs))) if each is not None]
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
        reader = pickle.Unpickler(io.BytesIO(content))
        reader.persistent_load = lambda name: self.problem if name == "problem" else self._here.get(name)  # type: ignore[method-assign]
        return reader.load()

    def _dumped(self, outcome: Any) -> bytes:
        names = {id(value): name for name, value in self._here.items() if _is_named(value)}
        buffer = io.BytesIO()
        writer = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
        writer.persistent_id = lambda value: "problem" if isinstance(value, Problem) else names.get(id(value))  # type: ignore[method-assign]
        writer.dump(outcome)
        return buffer.getvalue()


def _is_named(value: Any) -> bool:
    """Whether a value is an object with an identity, and no number or word."""
    return isinstance(value, (nn.Module, Optimizer)) or _optimizer_of(value) is not None or callable(value)
