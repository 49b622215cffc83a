"""`Problem`: a model, its loss and its data, evaluated without changing any of them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from wellcond import causes, isolation, losses
from wellcond.errors import InvalidProblem, NonFinite, UnknownLayer

Batch = tuple[Any, Any]


@dataclass(frozen=True)
class Evaluation:
    """One batch's outputs and mean loss, with their graph.

    terms: the number of summands in the mean, which is what the batch weighs beside others.
    loss_at: the loss as a function of other outputs or labels of the same batch.
    """

    index: int
    outputs: Tensor | None
    targets: Any
    loss: Tensor
    terms: float
    loss_at: losses.Loss


class Problem:
    """A model, its loss and its batches: the one input of every measurement.

    Evaluating a problem changes nothing of the user's: modes, buffers, random number generators, hooks and
    `.grad` are as before, also after an exception.

    model: any `nn.Module`; `torch.compile`d and DDP-wrapped ones are measured through the module inside.
    loss: `loss(outputs, targets)` → scalar, the *mean* over the batch.
    batches: a re-iterable of `(inputs, targets)` (list, `DataLoader`, …), or one such pair. Inputs are a tensor,
        a tuple (`model(*inputs)`) or a dict (`model(**inputs)`), and are moved to the model's device.
    batchnorm: `"batch"`, the statistics of each batch with gradients through them, as in training; or
        `"running"`, the running statistics, as in evaluation. The same weights can differ 25-fold between the two.
    dropout: None turns dropout off; a seed keeps it on, with the same masks on every pass.

    >>> problem = Problem(nn.Linear(3, 2), nn.MSELoss(), (torch.ones(4, 3), torch.zeros(4, 2)))
    >>> problem.size
    8
    """

    def __init__(
        self,
        model: nn.Module,
        loss: losses.Loss,
        batches: Iterable[Any],
        batchnorm: Literal["batch", "running"] = "batch",
        *,
        dropout: int | None = None,
    ) -> None:
        if batchnorm not in ("batch", "running"):
            raise InvalidProblem(f'batchnorm is {batchnorm!r}; write "batch" or "running".')
        self.model = isolation.unwrapped(model)
        self.loss = loss
        self.batches = _as_batches(batches)
        self.batchnorm = batchnorm
        self.dropout = dropout
        self.params = _trainable(self.model)
        first = next(iter(self.params.values()))
        self.dtype, self.device = first.dtype, first.device
        self.size = sum(p.numel() for p in self.params.values())
        self.likelihood: losses.Likelihood | None = None
        self._loss_is_known = False
        self._is_checked = False

    def __repr__(self) -> str:
        return f"Problem({type(self.model).__name__}, {self.size:,} parameters, batchnorm={self.batchnorm!r})"

    def select(self, names: Sequence[str]) -> dict[str, nn.Parameter]:
        """Trainable parameters by their own names or by those of modules that hold them, in the model's order."""
        chosen: set[str] = set()
        for name in names:
            matches = [p for p in self.params if p == name or p.startswith(f"{name}.")]
            if not matches:
                if any(p == name or p.startswith(f"{name}.") for p, _ in self.model.named_parameters()):
                    raise InvalidProblem(f"{name!r} is frozen; call requires_grad_() on it to measure it.")
                modules = {p.rpartition(".")[0] for p in self.params} - {""}
                raise UnknownLayer(name, [*self.params, *sorted(modules)])
            chosen.update(matches)
        return {name: p for name, p in self.params.items() if name in chosen}

    @property
    def couples_examples(self) -> bool:
        """Whether a BatchNorm makes an example's output depend on the others of its batch."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        return any(self.batchnorm == "batch" or not m.track_running_stats for m in norms)

    @property
    def is_one_batch(self) -> bool:
        """Whether the data are one fixed batch, whose graph can be kept."""
        return isinstance(self.batches, (list, tuple)) and len(self.batches) == 1

    # evaluation

    def evaluations(self) -> Iterator[Evaluation]:
        """Forward passes over all batches, each with its graph, one at a time."""
        with self.measuring():
            for index, batch in self.data():
                yield self.evaluate(index, batch)

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        """The model in the state that is measured, and on leaving everything as it was."""
        return isolation.isolated(
            self.model,
            self.device,
            batch_statistics=self.batchnorm == "batch",
            dropout=self.dropout is not None,
        )

    def data(self) -> Iterator[tuple[int, Batch]]:
        """The batches in their order, on the model's device."""
        index = -1
        with isolation.loader_generators_kept(self.batches):
            for index, batch in enumerate(self.batches):
                if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                    raise InvalidProblem(
                        f"batch {index} is a {type(batch).__name__}, not a pair (inputs, targets). "
                        "Write batches=[(inputs, targets), …]; several inputs go into a tuple or a dict."
                    )
                yield index, tree_map(self._to_device, tuple(batch))
        if index < 0:
            raise InvalidProblem("there are no batches: the loader is empty (drop_last with too few examples?).")

    def forward(self, index: int, inputs: Any) -> Any:
        """The model's outputs on one batch; call it inside `measuring()`."""
        if self.dropout is not None:
            isolation.seed_generators(self.dropout + index, self.device)
        if isinstance(inputs, dict):
            return self.model(**inputs)
        return self.model(*inputs) if isinstance(inputs, (tuple, list)) else self.model(inputs)

    def evaluate(self, index: int, batch: Batch) -> Evaluation:
        """Outputs and loss of one batch; call it inside `measuring()`."""
        inputs, targets = batch
        raw = self.forward(index, inputs)
        outputs = raw if isinstance(raw, Tensor) else getattr(raw, "logits", None)
        losses.check_targets(self.loss, outputs, targets)
        loss, loss_at = self._loss_and_its_function(raw, outputs, targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise InvalidProblem(f'the loss must be one number, but has {found}. Write reduction="mean".')
        if not torch.isfinite(loss.detach()):
            again = lambda: self.forward(index, inputs)  # noqa: E731
            raise NonFinite(causes.of_non_finite(self.model, index, batch, again))
        if not self._loss_is_known and outputs is not None and outputs.dim():
            losses.check_is_mean(self.loss, loss_at, outputs, targets, loss)
            self.likelihood = losses.recognise(self.loss, loss_at, outputs, targets)
        self._loss_is_known = True
        if self.likelihood is not None and outputs is not None:
            terms = self.likelihood.terms(outputs, targets)
        else:
            terms = float(_batch_size(outputs, targets))
        return Evaluation(index, outputs, targets, loss.reshape(()), terms, loss_at)

    def _loss_and_its_function(
        self, raw: Any, outputs: Tensor | None, targets: Any
    ) -> tuple[Any, losses.Loss]:
        """Hugging Face models return an object with `.logits`; a loss may want either the object or the tensor."""
        if isinstance(raw, Tensor) or outputs is None:
            return self.loss(raw, targets), self.loss
        try:
            loss = self.loss(raw, targets)
        except (TypeError, AttributeError):
            return self.loss(outputs, targets), self.loss

        def at(logits: Tensor, labels: Any) -> Tensor:
            changed = copy.copy(raw)
            changed.logits = logits
            return self.loss(changed, labels)

        return loss, at

    def check(self) -> None:
        """Raise `NotDeterministic`, naming the cause, if two passes would not see the same problem.

        Operators, which pass over the data many times, call it once. It costs two forward passes of the first
        batch and, unless the batches are a list, two passes over the data.
        """
        if not self._is_checked:
            causes.check_loader(self.batches, self.data, self.device)
            with self.measuring(), torch.no_grad():
                index, (inputs, _) = next(self.data())
                keep_seed = self.dropout is not None
                causes.check_model(self.model, lambda: self.forward(index, inputs), self.device, keep_seed)
            self._is_checked = True

    def _to_device(self, value: Any) -> Any:
        return value.to(self.device) if isinstance(value, Tensor) else value


def _as_batches(batches: Any) -> Iterable[Any]:
    is_pair = isinstance(batches, tuple) and len(batches) == 2 and isinstance(batches[1], Tensor)
    if is_pair:
        return [batches]
    if isinstance(batches, Tensor) or not isinstance(batches, Iterable):
        raise InvalidProblem(
            f"batches is a {type(batches).__name__}; write batches=[(inputs, targets), …] or pass a DataLoader."
        )
    if iter(batches) is batches:
        raise InvalidProblem("batches is an iterator and ends after one pass; write list(batches).")
    if isinstance(batches, Sized) and len(batches) == 0:
        raise InvalidProblem("there are no batches: the loader is empty (drop_last with too few examples?).")
    return batches


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    params = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not params:
        raise InvalidProblem(
            "the model has no trainable parameters; call model.requires_grad_() on what you want to measure."
        )
    for name, p in params.items():
        if p.dtype not in (torch.float32, torch.float64):
            kind = str(p.dtype).removeprefix("torch.")
            raise InvalidProblem(
                f"{name!r} is {kind}: second derivatives lose all their digits there. "
                "Measure a copy: copy.deepcopy(model).float(), or .double() for reference results."
            )
    kinds = {(p.dtype, p.device) for p in params.values()}
    if len(kinds) > 1:
        raise InvalidProblem(f"parameters have several dtypes or devices ({sorted(map(str, kinds))}); use one.")
    return params


def _batch_size(outputs: Tensor | None, targets: Any) -> int:
    for tensor in (outputs, *tree_leaves(targets)):
        if isinstance(tensor, Tensor) and tensor.dim():
            return tensor.shape[0]
    return 1
