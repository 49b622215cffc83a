"""`Problem`: a model, its loss and its data, evaluated without changing any of them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Generator, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from wellcond.errors import InvalidProblem, NonFinite, UnknownLayer
from wellcond.network import isolation
from wellcond.network.calling import call, unwrapped, why_call_failed
from wellcond.problem import checks, failures, losses
from wellcond.problem.likelihoods import Likelihood

Batch = tuple[Any, Any]

PLAIN = (RuntimeError, IndexError, ValueError)
"""What torch raises when shapes, dtypes or indices do not fit; subclasses of these mean something else."""


@dataclass(frozen=True)
class Evaluation:
    """One batch's outputs and mean loss, with their graph.

    examples: the size of the batch.
    terms: the number of summands in the mean, which is what the batch weighs beside others.
    loss_at: the loss as a function of other outputs or labels of the same batch.
    """

    index: int
    outputs: Tensor | None
    targets: Any
    loss: Tensor
    examples: int
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
        self.model = unwrapped(model)
        self.loss = loss
        self.batches = checks.as_batches(batches)
        self.batchnorm = batchnorm
        self.dropout = dropout
        self.params = checks.trainable(self.model)
        first = next(iter(self.params.values()))
        self.dtype, self.device = first.dtype, first.device
        self.size = sum(p.numel() for p in self.params.values())
        self.likelihood: Likelihood | None = None
        self._loss_is_known = False
        self.is_checked = False

    def __repr__(self) -> str:
        return f"Problem({type(self.model).__name__}, {self.size:,} parameters, batchnorm={self.batchnorm!r})"

    def select(self, names: Sequence[str]) -> dict[str, nn.Parameter]:
        """Trainable parameters by their own names or by those of modules that hold them, in the model's order."""
        # tied weights have several names; any of them will do
        every = dict(self.model.named_parameters(remove_duplicate=False))
        chosen: set[int] = set()
        for name in names:
            matches = [p for full, p in every.items() if full == name or full.startswith(f"{name}.")]
            if not matches:
                modules = {full.rpartition(".")[0] for full in self.params} - {""}
                raise UnknownLayer(name, [*self.params, *sorted(modules)])
            if not any(p.requires_grad for p in matches):
                raise InvalidProblem(f"{name!r} is frozen; call requires_grad_() on it to measure it.")
            chosen.update(map(id, matches))
        return {name: p for name, p in self.params.items() if id(p) in chosen}

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

    def evaluations(self) -> Generator[Evaluation, None, None]:
        """Forward passes over all batches, each with its graph, one at a time."""
        with self.measuring(), contextlib.closing(self.data()) as data:
            for index, batch in data:
                yield self.evaluate(index, batch)

    def measuring(self) -> contextlib.AbstractContextManager[None]:
        """The model in the state that is measured, and on leaving everything as it was."""
        return isolation.isolated(
            self.model,
            self.device,
            batch_statistics=self.batchnorm == "batch",
            dropout=self.dropout is not None,
        )

    def data(self) -> Generator[tuple[int, Batch], None, None]:
        """The batches in their order, on the model's device. Close it if you may leave it before its end."""
        index = -1
        with isolation.loader_generators_kept(self.batches):
            for index, batch in enumerate(self.batches):
                if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                    parts = f" of {len(batch)}" if isinstance(batch, Sized) else ""
                    raise InvalidProblem(
                        f"batch {index} is a {type(batch).__name__}{parts}, not a pair (inputs, targets). "
                        "Write batches=[(inputs, targets), …]; several inputs go into a tuple or a dict."
                    )
                yield index, tree_map(self._to_device, tuple(batch))
        if index < 0:
            raise InvalidProblem(checks.NO_BATCHES)

    def forward(self, index: int, inputs: Any) -> Any:
        """The model's outputs on one batch; call it inside `measuring()`."""
        if self.dropout is not None:
            isolation.seed_generators(self.dropout + index, self.device)
        try:
            return call(self.model, inputs)
        except PLAIN as error:
            if type(error) not in PLAIN:  # out of memory, or what the model itself raises
                raise
            raise InvalidProblem(why_call_failed(self.model, index, inputs, error)) from error

    def evaluate(self, index: int, batch: Batch) -> Evaluation:
        """Outputs and loss of one batch; call it inside `measuring()`."""
        return self.judge(index, batch, self.forward(index, batch[0]))

    def loss_again(self, index: int, batch: Batch) -> Tensor:
        """The loss of a batch that has been evaluated before, at other weights, without telling again what kind it is.

        Call it inside `measuring()`. It is a forward pass and no more.
        """
        if not self._loss_is_known:
            return self.evaluate(index, batch).loss
        raw = self.forward(index, batch[0])
        outputs = raw if isinstance(raw, Tensor) else getattr(raw, "logits", None)
        loss, _ = self._loss_and_its_function(raw, outputs, batch[1])
        self._check_loss(index, batch, loss)
        one_number: Tensor = loss.reshape(())
        return one_number

    def judge(self, index: int, batch: Batch, raw: Any) -> Evaluation:
        """The loss of one batch whose outputs are there."""
        targets = batch[1]
        outputs = raw if isinstance(raw, Tensor) else getattr(raw, "logits", None)
        losses.check_targets(self.loss, outputs, targets)
        try:
            loss, loss_at = self._loss_and_its_function(raw, outputs, targets)
            self._check_loss(index, batch, loss)
            if outputs is not None and outputs.dim():
                self._recognise(loss_at, outputs, targets, loss)
        except PLAIN as error:
            if type(error) not in PLAIN:
                raise
            raise InvalidProblem(failures.of_failed_loss(index, outputs, targets, error)) from error
        examples = _batch_size(outputs, targets)
        terms = float(examples)
        if self.likelihood is not None and outputs is not None:
            terms, loss_at = self.likelihood.terms(outputs, targets), self.likelihood.mean
        return Evaluation(index, outputs, targets, loss.reshape(()), examples, terms, loss_at)

    def _check_loss(self, index: int, batch: Batch, loss: Any) -> None:
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"type {type(loss).__name__}"
            raise InvalidProblem(
                f'the loss must be one number, a tensor, but has {found}. Write reduction="mean", without .item().'
            )
        if not torch.isfinite(loss.detach()):
            again = lambda: self.forward(index, batch[0])  # noqa: E731
            raise NonFinite(failures.of_non_finite(self.model, index, batch, again))
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise InvalidProblem(
                "the loss does not depend on the trainable parameters: is there a detach(), a no_grad() or an "
                "argmax in the model or the loss?"
            )

    def _recognise(self, loss_at: losses.Loss, outputs: Tensor, targets: Any, loss: Tensor) -> None:
        """Tell the likelihood by the first batch, and again if a later one shows that it was another."""
        if not self._loss_is_known:
            losses.check_is_mean(self.loss, loss_at, outputs, targets, loss)
        elif self.likelihood is None or losses.explains(self.likelihood, loss, outputs, targets):
            return
        self.likelihood = losses.recognise(self.loss, loss_at, outputs, targets)
        self._loss_is_known = True

    def _loss_and_its_function(self, raw: Any, outputs: Tensor | None, targets: Any) -> tuple[Any, losses.Loss]:
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
        if not self.is_checked:
            failures.check_loader(self.batches, self.data, self.device)
            with self.measuring(), torch.no_grad(), contextlib.closing(self.data()) as data:
                index, (inputs, _) = next(data)
                keep_seed = self.dropout is not None
                failures.check_model(self.model, lambda: self.forward(index, inputs), self.device, keep_seed)
            self.is_checked = True

    def _to_device(self, value: Any) -> Any:
        return value.to(self.device) if hasattr(value, "to") else value  # tensors, and tokenizers' encodings


def _batch_size(outputs: Tensor | None, targets: Any) -> int:
    for tensor in (outputs, *tree_leaves(targets)):
        if isinstance(tensor, Tensor) and tensor.dim():
            return tensor.shape[0]
    return 1
