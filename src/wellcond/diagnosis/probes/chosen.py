"""What a script computes of actions: their log-probabilities, where they are right, and what it calls a reward."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from wellcond.network.calling import is_equal

WORDS = {
    "rewards": {
        "reward", "rewards", "rew", "rews", "advantage", "advantages", "adv", "advs", "return", "returns", "ret",
        "rets", "payoff", "payoffs", "gain", "gains", "profit", "profits", "utility", "utilities", "gae",
    },
    "costs": {
        "cost", "costs", "regret", "regrets", "penalty", "penalties", "loss", "losses", "risk", "risks", "error",
        "errors", "neg", "negative", "minus", "punishment", "damage", "harm",
    },
}  # fmt: skip
"""Parts of names that say what is wanted, or to be avoided. With both in one name it is a cost: `reward_loss`."""
WHOLE_NAMES = {"score", "scores", "points"}
"""Names that mean a reward by themselves only: an anomaly_score, or an error_score, is to be avoided."""
DRAWS = (torch.multinomial, Tensor.multinomial)
COMPARISONS = (torch.eq, Tensor.eq, Tensor.__eq__)
PICKS = (torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim, Tensor.__getitem__)
NEGATIVE_PICKS = (F.cross_entropy, F.nll_loss)
SOFTMAXES = (torch.softmax, Tensor.softmax, F.softmax)
"""What weighs all actions at once, as an expected reward does."""
MULTIPLICATIONS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
SUM = 1e-3
"""Distance of a sum of probabilities from 1 that rounding may cause."""
OTHERS = ("torch", "wellcond", "numpy")
"""Packages whose own variables say nothing of the script."""


class ChosenActions(TorchFunctionMode):
    """Watches a step: probabilities of actions, picked by index, cross-entropy or a distribution; draws; variables.

    Variables are seen when a function of the script returns, with what it returns under its own name. Under another
    profiler their names are not seen.

    Args:
        of_batch: Tensors of the batch.
    """

    def __init__(self, of_batch: list[Tensor]) -> None:
        super().__init__()
        self.of_batch = of_batch
        self.picked: list[Tensor] = []
        self.whole: list[Tensor] = []
        self.are_right: list[Tensor] = []
        self._drawn: list[Tensor] = []
        self._variables: dict[str, list[Any]] = defaultdict(list)
        self._depth = 0

    def named(self, words: str) -> dict[str, list[Any]]:
        """The variables whose names say so, or say neither."""
        return {name: values for name, values in self._variables.items() if meaning(name) == words}

    def __enter__(self) -> ChosenActions:
        self._is_free = sys.getprofile() is None
        if self._is_free:
            sys.setprofile(self._on_event)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._is_free:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        if event not in ("call", "return"):
            return
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("torch.distributions"):
            if frame.f_code.co_name == "log_prob":
                self._depth += 1 if event == "call" else -1
                if event == "return" and not self._depth and isinstance(result, Tensor):
                    self.picked.append(result)
        elif event == "return" and module.partition(".")[0] not in OTHERS:
            self._note({**frame.f_locals, frame.f_code.co_name: result})

    def _note(self, variables: Mapping[Any, Any]) -> None:
        for name, value in variables.items():
            if isinstance(value, Mapping):
                self._note({key: each for key, each in value.items() if not isinstance(each, Mapping)})
            elif (
                isinstance(value, (Tensor, list, tuple))
                and isinstance(name, str)
                and not any(value is each for each in self._variables[name])
            ):
                self._variables[name].append([*value] if isinstance(value, list) else value)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or result is NotImplemented:
            return result
        if func in DRAWS:
            self._drawn.append(result)
        elif result.requires_grad and not self._depth:
            if func in SOFTMAXES:
                self.whole.append(result)
            elif (func in MULTIPLICATIONS and _is_one_hot(args)) or (
                func in PICKS and _is_of_actions(args, kwargs or {})
            ):
                self.picked.append(result)
            elif func in NEGATIVE_PICKS and result.dim():
                self.picked.append(-result)
                return -self.picked[-1]  # the same numbers, by way of what is differentiated
        elif self._drawn:
            self._follow(func, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)], result)
        return result

    def _follow(self, func: Callable[..., Any], taken: list[Tensor], result: Tensor) -> None:
        """Drawn numbers through changes of their shape, to where they are compared with a tensor of the batch."""
        drawn = [t for t in taken if any(t is each for each in self._drawn)]
        if drawn and func in COMPARISONS:
            others = [t for t in taken if t is not drawn[0]]
            if any(t.shape == o.shape and is_equal(t, o) for t in self.of_batch for o in others):
                self.are_right.append(result)
        elif len(taken) == len(drawn) == 1 and result.dtype == drawn[0].dtype and _is_same(result, drawn[0]):
            self._drawn.append(result)


def meaning(name: str) -> str:
    """`"rewards"`, `"costs"` or "", by the parts of a name."""
    parts = {part.lower() for part in re.findall(r"[A-Za-z][a-z]*", name)}
    if parts & WORDS["costs"]:
        return "costs"
    return "rewards" if parts & WORDS["rewards"] or name.lower() in WHOLE_NAMES else ""


def _is_of_actions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether numbers are taken by index from probabilities, or their logarithms."""
    source = args[0] if args else kwargs.get("input")
    indices = [t for t in tree_leaves((args[1:], kwargs)) if isinstance(t, Tensor) and t is not source]
    if not isinstance(source, Tensor) or not any(t.dtype == torch.long and t.dim() for t in indices):
        return False
    return _are_probabilities(source)


def _is_one_hot(args: tuple[Any, ...]) -> bool:
    """Whether a product picks one of several probabilities, or logarithms, by a code of zeros and a one."""
    if len(args) < 2 or not all(isinstance(each, Tensor) for each in args) or args[0].shape != args[1].shape:
        return False
    codes = [t for t in args if not t.requires_grad and bool(((t == 0) | (t == 1)).all())]
    others = [t for t in args if t.requires_grad]
    is_code = len(codes) == 1 and codes[0].dim() > 1 and bool((codes[0].sum(-1) == 1).all())
    return is_code and len(others) == 1 and _are_probabilities(others[0])


def _are_probabilities(tensor: Tensor) -> bool:
    """Whether numbers, or what they are logarithms of, sum to 1."""
    values = tensor.detach().double()
    values = values if bool((values >= 0).all()) else values.exp()
    return any(bool(((values.sum(dim) - 1).abs() < SUM).all()) for dim in range(values.dim()))


def _is_same(a: Tensor, b: Tensor) -> bool:
    return is_equal(a.flatten(), b.flatten())
