"""`MeasuredModel`: a model in the state that is measured, the batches, and the outputs on them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator
from operator import length_hint
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.errors import InvalidProblem
from wellcond.network import checks
from wellcond.network.calling import call, dtype_name, to_device, why_call_failed, why_unfit
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import (
    own_arithmetic,
    passes,
    precision_now,
    surrounding_autocast,
    trained_in,
)
from wellcond.network.isolation.precision import Precision
from wellcond.network.isolation.snapshot import Snapshot
from wellcond.network.norms import Found, OwnNorms
from wellcond.network.whole import state_of_shards
from wellcond.problem.batches import NO_BATCHES, Batch, Source, as_pair, own_copies, readable
from wellcond.problem.evaluation import RecognizedLoss, explained
from wellcond.problem.pass_count import PassCount
from wellcond.problem.ranks.orders import look_after_others
from wellcond.problem.training_step import TrainingStep

STALE_COPY = (
    "the weights have changed since the problem was made. Calls of all processes gather them again; what is measured "
    "by each process for itself needs a new problem, made in all processes."
)


class MeasuredModel(PassCount):
    """A model in the state that is measured, its batches and its outputs; everything of the user's is restored."""

    model: nn.Module
    sharded: nn.Module | None
    params: dict[str, nn.Parameter]
    dtype: torch.dtype
    device: torch.device
    source: Source
    batchnorm: Literal["batch", "running"]
    dropout: int | None
    precision: Precision
    _loss: RecognizedLoss
    _kinds: dict[str, tuple[torch.dtype, torch.device]]
    _shards: Any

    def __init__(self) -> None:
        super().__init__()
        self._draws: bool | None = None
        self._norms = OwnNorms()
        self._held: Snapshot | None = None
        self.waits_on_host = False
        self._batches_seen = 1

    def _precision(self, own: Precision) -> Precision:
        """That of the problem, or else that of the call it is made in: what derives from a problem trains alike."""
        now = precision_now() or Precision(surrounding_autocast(self.device.type))
        return Precision(own.autocast or now.autocast, own.scaler or now.scaler)

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Snapshot]:
        """Put the model into the state that is measured; on leaving, everything is restored.

        Yields:
            The state on entering; inside another `measuring()` of the problem, the state on entering that one.

        Raises:
            InvalidProblem: The model's parameters have changed since the problem was created.
        """
        with own_arithmetic():
            if self._held is not None:
                with torch.enable_grad():
                    yield self._held
                return
            checks.check_not_stale(self.model, self.params, self._kinds)
            if self.sharded is not None and state_of_shards(self.sharded) != self._shards:
                raise InvalidProblem(STALE_COPY)
            is_evaluated = self.batchnorm == "running" and self.dropout is None
            state = isolation.isolated(
                self.model,
                self.device,
                batchnorm=self.batchnorm,
                dropout=self.dropout is not None,
                norms=() if is_evaluated else self._own_norms()[0],
            )
            with state as self._held, save_on_cpu(pin_memory=True) if self.waits_on_host else contextlib.nullcontext():
                try:
                    yield self._held
                finally:
                    self._held = None

    @contextlib.contextmanager
    def as_trained(self) -> Iterator[Precision]:
        """Inside, passes of the model and the loss are computed as in training: autocast and TF32 are as in the script.

        Enter it before `measuring()`.
        """
        with own_arithmetic():  # which reads the autocast that the call is made in
            precision = self._precision(self.precision)
            with trained_in(precision):
                yield precision

    @own_arithmetic()
    def says_precision(self, trained: str, measured: str) -> str:
        """A sentence on what is computed as in training, and what is not; empty without autocast.

        Args:
            trained: What runs as in training.
            measured: What runs in the precision of the weights.
        """
        precision = self._precision(self.precision)
        if precision.autocast is None:
            return ""
        return f"{trained} in {precision}, as it is trained; {measured} in {dtype_name(self.dtype)}"

    @property
    def is_random(self) -> bool:
        """Whether the model or the loss draws random numbers; known once it was evaluated."""
        return bool(self._draws or self._loss.draws)

    @property
    def eps(self) -> float:
        """Relative rounding error of a pass: that of the weights' dtype, or of autocast's where passes use it."""
        now = precision_now() or Precision()
        return float(torch.finfo(now.autocast or self.dtype).eps)

    def data(self) -> Generator[tuple[int, Batch], None, None]:
        """The measured batches in order, on the model's device. Close the generator unless you read it to its end."""
        index = -1
        batches = self.source.fixed[0]
        with isolation.loader_generators_kept(batches):
            for index, batch in enumerate(readable(batches)):
                self._batches_seen = max(self._batches_seen, index + 1)
                yield index, self._pair(index, batch)
        if index < 0:
            raise InvalidProblem(NO_BATCHES)

    def draws(self, seed: int, epochs: int | None = None) -> Generator[Batch, None, None]:
        """The loader's batches, epoch after epoch, as in training: each epoch is shuffled and augmented afresh.

        Call it inside `measuring()`, and close it.

        Args:
            seed: Seed of the first epoch; the next epoch has the next seed.
            epochs: The number of epochs; None: without end.
        """
        with contextlib.closing(self.source.draws(seed, epochs)) as batches:
            for index, batch in enumerate(batches):
                yield self._pair(index, batch)

    def _pair(self, index: int, batch: Any) -> Batch:
        pair: Batch = to_device(as_pair(index, batch, self.model, self._loss.loss), self.device)
        return pair

    @property
    def is_one_batch(self) -> bool:
        """Whether the data are one fixed batch, whose graph can be reused."""
        batches = self.source.fixed[0]
        return isinstance(batches, (list, tuple)) and len(batches) == 1

    @property
    def batch_count(self) -> int:
        """Number of batches in one pass over the data; of a loader that has no length, those read so far."""
        return (length_hint(self.source.fixed[0], 0) if self.source.is_read else 0) or self._batches_seen

    def _own_norms(self) -> Found:
        def run(modules: Collection[nn.Module]) -> None:
            evaluated = isolation.isolated(self.model, self.device, batchnorm="running", dropout=False, norms=modules)
            with evaluated, contextlib.closing(self.data()) as data:
                index, batch = next(data)
                self.forward(index, batch[0])

        return self._norms.of(self.model, run)

    @property
    def couples_examples(self) -> bool:
        """Whether a BatchNorm, torch's or another, makes an example's output depend on the others of its batch."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        of_batch = any(self.batchnorm == "batch" or not m.track_running_stats for m in norms)
        return of_batch or (self.batchnorm == "batch" and bool(self._own_norms()[0]))

    def forward(self, index: int, inputs: Any) -> Any:
        """The model's outputs on one batch; its index seeds the random numbers. Call it inside `measuring()`."""
        look_after_others()
        seed = (self.dropout or 0) + index
        isolation.seed_generators(seed, self.device)
        for generator in self._held.generators if self._held is not None else ():
            generator.manual_seed(seed)
        is_first = self._held is not None and self._draws is None
        before = isolation.generator_states(self.device) if is_first else None
        self._forward_passes += 1
        with explained(lambda error: why_call_failed(self.model, index, inputs, error)):
            outputs = self._called(index, own_copies(inputs))
        if before is not None:
            self._draws = not isolation.generator_states(self.device).is_same_as(before)
        return outputs

    def _called(self, index: int, inputs: Any) -> Any:
        if isinstance(self._loss.loss, TrainingStep):
            with passes(self.device):
                return self._loss.loss.run(self.model, inputs)
        if why := why_unfit(self.model, inputs):
            raise InvalidProblem(f"batch {index} {why}")
        with passes(self.device):
            return call(self.model, inputs)
