"""Batches as training scripts have them: which are measured, and what in each goes to the model and to the loss."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import count, pairwise
from operator import length_hint
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import SequenceKey, register_pytree_node, tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from wellcond.errors import InvalidProblem
from wellcond.network.calling import arguments_of, dense_parts, tensors_in
from wellcond.network.isolation.isolation import loader_generators_kept, rng_kept, seed_generators
from wellcond.problem.loss.outputs import Loss, own_loss, with_tensors
from wellcond.problem.training_step import NoTargets, TrainingStep

Batch = tuple[Any, Any]
"""Inputs and targets."""
NO_BATCHES = "there are no batches: the loader is empty (drop_last with too few examples?)."
ENOUGH_EXAMPLES = 512
"""Number of examples that are held: ranks of layers can differ up to it, and means are known to 1/√512 = 4 %."""
MOST_BATCHES = 16
"""Limit for small batches: 16 of the commonest size, 32, are enough examples, and every further one costs a call."""
MOST_BYTES = 2**28
"""Limit for large examples, such as images."""
APART = 1_000_003
"""Between the seeds of two processes that train one model."""
COMPARED_EXAMPLES = 64
"""Number of examples read twice to see whether a loader augments: a flip with p = 1/2 escapes once in 2⁶⁴."""
MOST_IN_A_BATCH = 8
"""Tensors of one shape in a batch, at most: more of them are batches, as `tensor.split(64)` gives them."""
LABELS = ("labels", "label", "targets", "target", "y")
"""Names under which batches that are dicts or objects hold their targets, in order of preference."""


class Several(tuple[Any, ...]):
    """Targets that the loss takes one by one: `loss(outputs, *targets)`."""

    __slots__ = ()


register_pytree_node(
    Several,
    lambda targets: (list(targets), None),
    lambda items, _: Several(items),
    flatten_with_keys_fn=lambda targets: ([(SequenceKey(place), each) for place, each in enumerate(targets)], None),
)


class Source:
    """The batches that a user passed, and the fixed ones among them that are measured.

    Args:
        batches: A re-iterable of batches, or one batch.
        device: Device of the model.
        rank: Number of this process among those that train the model: where each shuffles by itself, they draw
            different examples.

    Attributes:
        loader: The re-iterable; a single batch is a list of one.

    Raises:
        InvalidProblem: There are no batches, or they can be read only once.
    """

    def __init__(self, batches: Any, device: torch.device, rank: int = 0) -> None:
        self.loader = as_batches(batches)
        self._device = device
        self._seed = APART * rank
        self._fixed: tuple[Iterable[Any], str] | None = None

    @property
    def is_read(self) -> bool:
        """Whether it is known which batches are measured."""
        return self._fixed is not None or isinstance(self.loader, (list, tuple))

    @property
    def fixed(self) -> tuple[Iterable[Any], str]:
        """The batches that are measured, the same on every pass; and a sentence on which are held and why, if any."""
        if isinstance(self.loader, (list, tuple)):
            return self.loader, ""
        if self._fixed is None:
            self._fixed = self._chosen()
        return self._fixed

    def _chosen(self) -> tuple[Iterable[Any], str]:
        length = length_hint(self.loader, 0)
        why = "shuffles" if _shuffles(self.loader) else ""
        if not why:
            first, second = (self.drawn(seed, COMPARED_EXAMPLES)[0] for seed in (1, 2))
            if not same_batch(first, second):
                why = "gives other data on every pass (a random augmentation, or a sampler that shuffles)"
            elif length:
                return self.loader, ""
        held, is_all = self.drawn(0, ENOUGH_EXAMPLES)
        if not held:
            raise InvalidProblem(NO_BATCHES)
        examples = sum(map(examples_in, held))
        if is_all:
            batches = f"{len(held)} batches" if len(held) > 1 else "only batch"
            which = f"one draw of its {batches} ({examples} examples) is held" if why else ""
        else:
            of = f"first {len(held)} of its {length}" if length else f"first {len(held)}"
            which = f"the {of} batches ({examples} examples) are held"
        return held, f"the loader {why or 'has no length'}, so {which}; every number is of these" if which else ""

    def drawn(self, seed: int, examples: int) -> tuple[list[Any], bool]:
        """The first batches, until there are this many examples; and whether these are all batches."""
        drawn: list[Any] = []
        seen = size = 0
        with rng_kept(self._device), contextlib.closing(read(self.loader, self._seed + seed, self._device)) as batches:
            for batch in batches:
                if drawn and (seen >= examples or len(drawn) == MOST_BATCHES or size >= MOST_BYTES):
                    return drawn, False
                drawn.append(cloned(batch))
                seen += examples_in(batch)
                size += sum(t.numel() * t.element_size() for t in tensors_in(batch))
        return drawn, True

    def draws(self, seed: int, epochs: int | None = None) -> Generator[Any, None, None]:
        """The loader's batches, epoch after epoch, each shuffled and augmented afresh; the caller restores generators.

        Args:
            seed: Seed of the first epoch; the next epoch has the next seed.
            epochs: The number of epochs; None: without end.

        Raises:
            InvalidProblem: There are no batches.
        """
        for epoch in count() if epochs is None else range(epochs):
            is_empty = True
            with contextlib.closing(read(self.loader, self._seed + seed + epoch, self._device)) as batches:
                for batch in batches:
                    is_empty = False
                    yield batch
            if is_empty:
                raise InvalidProblem(NO_BATCHES)


def read(loader: Iterable[Any], seed: int, device: torch.device) -> Generator[Any, None, None]:
    """The batches of one pass, with random numbers from a seed; the loader's own generators are restored afterwards."""
    with loader_generators_kept(loader, seed):
        seed_generators(seed, device)
        yield from readable(loader)


def readable(loader: Iterable[Any]) -> Iterable[Any]:
    """A loader that can be read while the user reads it too: persistent workers share one iterator."""
    if not isinstance(loader, DataLoader) or not loader.persistent_workers:
        return loader
    twin = copy.copy(loader)
    vars(twin).update(_iterator=None, persistent_workers=False)
    return twin


def _shuffles(loader: Any) -> bool:
    samplers = [getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)]
    return any(isinstance(s, (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)) for s in samplers)


def cloned(batch: Any) -> Any:
    """A batch with tensors of its own: a loader may reuse the memory of a batch for the next."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)


def same_batch(one: Any, other: Any) -> bool:
    """Whether two batches, or lists of batches, hold the same numbers in the same order."""
    return _fingerprint(one) == _fingerprint(other)


def _fingerprint(batch: Any) -> list[float]:
    """Numbers that change with the values and with their order (a flipped image has the same sum)."""
    sums = []
    for tensor in (part for t in tensors_in(batch) for part in dense_parts(t)):
        flat = tensor.detach().reshape(-1).double().nan_to_num()
        sums.append(float(flat @ torch.arange(1, len(flat) + 1, dtype=flat.dtype, device=flat.device)))
    return sums


def own_copies(data: Any) -> Any:
    """Inputs or targets with copies of their tensors, into which a model or a loss may write; graphs stay attached."""

    def copied(leaf: Any) -> Any:
        if hasattr(leaf, "clone"):
            return leaf.clone()
        # an encoding of a tokenizer, say, which torch does not take for a container
        is_nest = isinstance(leaf, Mapping) or (is_dataclass(leaf) and not isinstance(leaf, type))
        return with_tensors(leaf, {id(t): t.clone() for t in tensors_in(leaf)}) if is_nest else leaf

    return tree_map(copied, data)


# how many examples


def examples_in(*parts: Any) -> int:
    """The number of examples: the length of the first tensor that has dimensions, looking at the parts in order.

    Pass the outputs first where they are known: inputs may have their time steps in front. Tensors without dimensions
    are skipped; if there are no others, there is one example.

    >>> examples_in((torch.ones(8, 3), torch.ones(8)))
    8
    """
    return next((len(t) for part in parts for t in tensors_in(part) if t.dim()), 1)


def share_examples(*parts: Any) -> bool:
    """Whether every tensor has the examples in front, so that the parts can be cut along them; no sparse one has.

    >>> share_examples(torch.ones(8, 3), torch.ones(8)), share_examples(torch.ones(8, 3), torch.ones(2, 8))
    (True, False)
    """
    sizes = {len(t) if t.dim() and t.layout is torch.strided else 0 for part in parts for t in tensors_in(part)}
    return len(sizes) == 1 and 0 not in sizes


# one batch or several


def cut(batch: Batch, most: int) -> list[Batch]:
    """Parts of nearly equal size with at most `most` examples; the batch itself if it cannot be cut."""
    examples = examples_in(batch)
    if not share_examples(batch) or examples <= most:
        return [batch]
    parts = math.ceil(examples / most)
    bounds = [examples * k // parts for k in range(parts + 1)]
    return [_part(batch, slice(*ends)) for ends in pairwise(bounds)]


def first_examples(batch: Batch, count: int) -> Batch:
    """The first examples of a batch that can be cut."""
    return _part(batch, slice(count))


def _part(batch: Batch, which: slice) -> Batch:
    part: Batch = tree_map(lambda leaf: leaf[which] if isinstance(leaf, Tensor) else leaf, batch)
    return part


def as_batches(batches: Any) -> Iterable[Any]:
    """A re-iterable of batches; one batch, as `next(iter(loader))` returns it, becomes a list of one.

    Raises:
        InvalidProblem: There are no batches, or only an iterator, or a tuple of two pairs that may be one batch or two.
    """
    if isinstance(batches, (Tensor, Mapping)) or (is_dataclass(batches) and not isinstance(batches, Iterable)):
        return [batches]
    if isinstance(batches, (tuple, list)) and batches and _is_one_batch(batches):
        return [batches]
    if isinstance(batches, Dataset) and not isinstance(batches, Iterable):
        raise InvalidProblem(
            f"batches is a {type(batches).__name__}, which holds examples; write DataLoader(dataset, batch_size=64)."
        )
    if not isinstance(batches, Iterable) or isinstance(batches, str):
        raise InvalidProblem(
            f"batches is a {type(batches).__name__}; write batches=[(inputs, targets), …] or pass a DataLoader."
        )
    inside = getattr(batches, "_dataloader", None)
    if isinstance(batches, Iterator) and isinstance(batches, DataLoader) and isinstance(inside, DataLoader):
        return inside  # of Ray Train's, which has one place in the data for all who read it
    if isinstance(batches, Iterator):  # without iter(batches), which draws a seed from a loader's generator
        raise InvalidProblem(
            "batches is an iterator and ends after one pass; write list(batches), or pass the loader itself."
        )
    if length_hint(batches, 1) == 0:
        raise InvalidProblem(NO_BATCHES)
    return batches


def _are_alike(parts: Sequence[Tensor]) -> bool:
    """Whether tensors have one dtype and one shape, save that the last may hold fewer examples."""
    first, *_, last = parts
    is_rest = first.dim() == last.dim() > 0 and last.shape[1:] == first.shape[1:] and len(last) <= len(first)
    return is_rest and {(t.dtype, t.shape) for t in parts[:-1]} | {(last.dtype, first.shape)} == {
        (first.dtype, first.shape)
    }


def _is_one_batch(parts: Sequence[Any]) -> bool:
    """Whether a list or tuple is one batch, of inputs and targets, and not several."""
    kinds = {Tensor if isinstance(p, Tensor) else Mapping if isinstance(p, Mapping) else type(p) for p in parts}
    kinds = {Sequence if kind in (tuple, list) else kind for kind in kinds}
    if kinds == {Tensor} and len(parts) > MOST_IN_A_BATCH and _are_alike(parts):
        return False
    if kinds == {Mapping}:
        return isinstance(parts, tuple) and len(parts) == 2 and parts[0].keys() != parts[1].keys()
    if kinds != {Sequence}:
        return bool(kinds & {Tensor, Mapping}) or (isinstance(parts, tuple) and len(kinds) > 1)
    if isinstance(parts, list) or len(parts) != 2:
        return False
    if any(len(part) != 2 for part in parts):
        return True  # two batches would be two pairs
    sizes = [{len(t) for t in tree_leaves(part) if isinstance(t, Tensor) and t.dim()} for part in parts]
    if len(sizes[0] | sizes[1]) > 1 and len(sizes[0]) == len(sizes[1]) == 1:
        return False  # inputs and targets of one batch would have one size
    raise InvalidProblem(
        "batches is a tuple of two pairs, which may be one batch or two. Write [((x1, x2), (y1, y2))] for one batch "
        "of two inputs and two targets, or [(x1, y1), (x2, y2)] for two batches."
    )


# what goes to the model, and what to the loss


def as_pair(index: int, batch: Any, model: nn.Module, loss: Loss) -> tuple[Any, Any]:
    """A batch as (inputs, targets): what goes to the model, and what to the loss.

    A pair stays as it is. Of (x, y, weight) the model gets the parts that its `forward` requires, and the loss the
    rest: as `loss(outputs, y, weight)` if it has three parameters, else as `loss(outputs, (y, weight))`. Of a dict,
    the targets are the first name in `LABELS`, and the model gets the names that its `forward` has. One tensor is its
    own target. If the model computes its loss itself, everything goes to the model; a training step gets the batch as
    it is.

    Raises:
        InvalidProblem: The batch has another form.
    """
    if isinstance(loss, TrainingStep):
        is_pair = isinstance(batch, tuple) and len(batch) == 2 and batch[1] is NoTargets  # one that was made here
        return batch if is_pair else (batch, NoTargets)
    if loss is own_loss:
        return _all_to_the_model(batch, model)
    if hasattr(batch, "_asdict") and len(batch) > 2 and _label_in(batch._asdict()):
        batch = batch._asdict()
    if isinstance(batch, (tuple, list)) and len(batch) == 1:
        batch = batch[0]
    if isinstance(batch, Tensor):
        return batch, batch
    if isinstance(batch, (tuple, list)) and len(batch) >= 2:
        return _by_place(batch, model, loss)
    named = batch if isinstance(batch, Mapping) else _attributes(batch)
    label = _label_in(named)
    if label is None:
        names = f" of {', '.join(map(str, named))}" if named else ""
        raise InvalidProblem(
            f"batch {index} is a {type(batch).__name__}{names} without targets. Write batches=[(inputs, targets), …], "
            f"or name the targets {LABELS[0]!r}; or write loss=None if the model returns its loss."
        )
    others = {name: part for name, part in named.items() if name != label}
    taken = _taken_by_name(others, model)
    if not isinstance(batch, Mapping) and (not taken or taken.keys() != others.keys()):
        return batch, named[label]  # the model takes the object itself
    if not taken and len(others) != 1:
        raise InvalidProblem(
            f"batch {index} holds {', '.join(map(str, others))}, and {type(model).__name__}.forward takes none of "
            f"them: it takes {', '.join(sorted(arguments_of(model).names or ()))}."
        )
    return taken or next(iter(others.values())), named[label]


def _by_place(batch: Sequence[Any], model: nn.Module, loss: Loss) -> tuple[Any, Any]:
    if len(batch) == 2:
        return batch[0], batch[1]
    to_model = min(max(arguments_of(model).required, 1), len(batch) - 1)
    inputs, targets = batch[:to_model], batch[to_model:]
    if len(targets) > 1:
        targets = (Several if arguments_of(loss).takes(1 + len(targets)) else tuple)(targets)
    return (tuple(inputs) if to_model > 1 else inputs[0]), (targets if len(targets) > 1 else targets[0])


def _all_to_the_model(batch: Any, model: nn.Module) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        return _taken_by_name(batch, model), batch.get(_label_in(batch))
    if not isinstance(batch, (tuple, list)):
        named = _attributes(batch)
        return batch, named.get(_label_in(named) or "")
    if len(batch) == 2 and (batch[1] is None or isinstance(batch[0], (tuple, list, Mapping))):
        return batch[0], batch[1]
    taken = tuple(batch[: arguments_of(model).most])
    return (taken if len(taken) > 1 else taken[0]), (batch[-1] if len(batch) > 1 else None)


def _taken_by_name(named: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """The parts that a model's `forward` has parameters for; Hugging Face's `Trainer` chooses columns the same way."""
    names = arguments_of(model).names
    return {name: part for name, part in named.items() if names is None or name in names}


def _label_in(named: Mapping[str, Any]) -> str | None:
    return next((name for name in LABELS if name in named), None)


def _attributes(batch: Any) -> dict[str, Any]:
    """The fields of a dataclass; of another object, such as a graph, its targets under one of `LABELS`."""
    if is_dataclass(batch):
        return {field.name: getattr(batch, field.name) for field in fields(batch)}
    is_plain = batch is None or isinstance(batch, (Tensor, tuple, list, str, int, float))
    return {} if is_plain else {name: getattr(batch, name) for name in LABELS if hasattr(batch, name)}
