"""`Problem`: a model, its loss and its data, evaluated without changing any of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from operator import length_hint
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.network.calling import call, to_device, unwrapped, why_call_failed, why_unfit
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import own_arithmetic
from wellcond.network.isolation.snapshot import Snapshot
from wellcond.network.norms import Found, OwnNorms, names_of_norms
from wellcond.problem import checks
from wellcond.problem.batches import NO_BATCHES, Source, as_pair, readable
from wellcond.problem.evaluation import Evaluation, RecognisedLoss, explained
from wellcond.problem.loss.likelihoods import Likelihood
from wellcond.problem.loss.outputs import Loss, own_loss
from wellcond.results import Cost

Batch = tuple[Any, Any]
Gradients = dict[str, Tensor | None]
"""∇L of parameters by name; None for an unused one, which an optimizer treats otherwise than a gradient of zero."""


class Problem:
    """A model, its loss and its batches: the one input of every measurement.

    Evaluating a problem changes nothing of yours: modes, buffers, counters, lists and dicts of modules and of the loss,
    random number generators, hooks and `.grad` are as before, also after an exception.

    Autocast, inference mode, TF32 and gradient hooks of parameters and modules take no part; a hook that `forward` sets
    on a tensor of its own does, like any custom backward. One thread measures at a time; others wait.

    Args:
        model: Any `nn.Module`; `torch.compile`d and DDP-wrapped ones are measured through the module inside.
        loss: `loss(outputs, targets)` → scalar, the *mean* over the batch; several terms are summed. None: the model
            returns its loss, as `.loss`, `["loss"]`, a number in a tuple, or its only output.
        batches: A `DataLoader`, a list of batches, or one batch. A loader that shuffles or augments, or has no length,
            is taken as it is: a few batches of it are held, and `held` says how many. A batch is `(inputs, targets)`,
            `(inputs, targets, weights)`, a dict with labels, or one tensor, its own target: see `as_pair`. Inputs are a
            tensor, a tuple (`model(*inputs)`) or a dict (`model(**inputs)`), and are moved to the model's device.
        batchnorm: `"batch"`, the statistics of each batch with gradients through them, as in training; or
            `"running"`, the running statistics, as in evaluation. The same weights can differ 25-fold between the two.
            It holds for every norm that has both, also your own; what the loss holds stays in its own mode.
        dropout: None turns dropout off; a seed keeps it on, with the same masks on every pass. Whatever else the model
            or the loss draws is the same on every pass too.

    Attributes:
        source: The batches as given and as measured; another problem made with it shares those that are held.

    Raises:
        InvalidProblem: The model has nothing to train, or the batches cannot be read more than once.

    Example:
        >>> problem = Problem(nn.Linear(3, 2), nn.MSELoss(), (torch.ones(4, 3), torch.zeros(4, 2)))
        >>> problem.size
        8
    """

    @own_arithmetic()  # while another thread measures the model, it is not as its user knows it
    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        batches: Any,
        batchnorm: Literal["batch", "running"] = "batch",
        *,
        dropout: int | None = None,
    ) -> None:
        if batchnorm not in ("batch", "running"):
            raise InvalidProblem(f'batchnorm is {batchnorm!r}; write "batch" or "running".')
        self.model = unwrapped(model)
        self.batchnorm = batchnorm
        self.dropout = dropout
        self.params = checks.trainable(self.model)
        self._kinds = {name: checks.kind_of(p) for name, p in self.params.items()}
        self.dtype, self.device = next(iter(self._kinds.values()))
        self.size = sum(p.numel() for p in self.params.values())
        self.batches = batches
        self.is_checked = False
        self.loss = loss
        self._draws: bool | None = None
        self._norms = OwnNorms()
        self._held: Snapshot | None = None
        self._batches_seen = 1
        self._forward_batches = self._backward_batches = 0
        self._products = Cost()

    def __repr__(self) -> str:
        return f"Problem({type(self.model).__name__}, {self.size:,} parameters, batchnorm={self.batchnorm!r})"

    # what it is

    @property
    def loss(self) -> Loss:
        """The loss, `own_loss` where the model returns it; another one may be assigned."""
        return self._loss.loss

    @loss.setter
    def loss(self, loss: Loss | None) -> None:
        self._loss = RecognisedLoss(own_loss if loss is None else loss, self.model, self.dropout or 0)
        self.is_checked = False

    @property
    def batches(self) -> Any:
        """The batches that are measured: the list or the loader that was given, or a list of those that are held.

        Others may be assigned.
        """
        return self.source.fixed[0]

    @batches.setter
    def batches(self, batches: Any) -> None:
        self.source = batches if isinstance(batches, Source) else Source(batches, self.device)

    @property
    def loader(self) -> Any:
        """What was given as batches, one batch as a list of one: all that training on copies draws from."""
        return self.source.loader

    @property
    def held(self) -> str:
        """Which batches of the loader are held, and why; empty if all data are measured."""
        return self.source.fixed[1]

    @property
    def notes(self) -> list[str]:
        """What was chosen for the problem: batches that are held, and, once evaluated, draws that are fixed."""
        found = [self.held] if self.held else []
        drawing = [name for name, draws in (("model", self._draws), ("loss", self._loss.draws)) if draws]
        if drawing:
            found.append(
                f"random numbers of the {' and the '.join(drawing)} are fixed: every pass of a batch draws the same"
            )
        if len(self._loss.summed) > 1:
            found.append(f"the loss returns {len(self._loss.summed)} terms, of which the sum is measured")
        return found

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood whose mean negative logarithm the loss is, once a batch has been evaluated."""
        return self._loss.likelihood

    @property
    def couples_examples(self) -> bool:
        """Whether a BatchNorm, torch's or another, makes an example's output depend on the others of its batch."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        of_batch = any(self.batchnorm == "batch" or not m.track_running_stats for m in norms)
        return of_batch or (self.batchnorm == "batch" and bool(self._own_norms()[0]))

    def norms(self) -> tuple[list[str], list[str]]:
        """Names of the layers that `batchnorm` decides on, and of layers that keep statistics but are left alone.

        The latter are measured in evaluation mode: in training mode their outputs are others on every pass.
        """
        return names_of_norms(self.model, self._own_norms())

    def _own_norms(self) -> Found:
        def run(modules: Collection[nn.Module]) -> None:
            evaluated = isolation.isolated(self.model, self.device, batchnorm="running", dropout=False, norms=modules)
            with evaluated, contextlib.closing(self.data()) as data:
                index, batch = next(data)
                self.forward(index, batch[0])

        return self._norms.of(self.model, run)

    @property
    def is_one_batch(self) -> bool:
        """Whether the data are one fixed batch, whose graph can be kept."""
        batches = self.batches
        return isinstance(batches, (list, tuple)) and len(batches) == 1

    def select(self, names: str | Sequence[str]) -> dict[str, nn.Parameter]:
        """Trainable parameters by their own names or by those of modules that hold them, in the model's order.

        Args:
            names: One name or several.

        Raises:
            UnknownLayer: A name is neither a parameter nor a module.
            InvalidProblem: What it names is frozen.
        """
        # tied weights have several names; any of them will do
        every = dict(self.model.named_parameters(remove_duplicate=False))
        chosen: set[int] = set()
        for name in [names] if isinstance(names, str) else names:
            matches = [p for full, p in every.items() if name in ("", full) or full.startswith(f"{name}.")]
            if not matches:
                modules = {full.rpartition(".")[0] for full in self.params} - {""}
                raise UnknownLayer(name, [*self.params, *sorted(modules)])
            if not any(p.requires_grad for p in matches):
                raise InvalidProblem(f"{name!r} is frozen; call requires_grad_() on it to measure it.")
            chosen.update(map(id, matches))
        return {name: p for name, p in self.params.items() if id(p) in chosen}

    # what it took

    @property
    def cost(self) -> Cost:
        """All passes so far. The cost of a measurement is the difference between after and before."""
        count = (length_hint(self.batches, 0) if self.source.is_read else 0) or self._batches_seen
        return self._products + Cost(self._forward_batches / count, self._backward_batches / count)

    def count_products(self, matvecs: int, passes: float) -> None:
        """Add products with a curvature matrix, and the forward+backward passes that they took."""
        self._products = self._products + Cost(matvecs=matvecs, product_passes=passes)

    def count_copies(self, cost: Cost) -> None:
        """Add the passes of copies of the model."""
        self._products = self._products + cost

    def count_backward(self) -> None:
        """Count the backward pass of one batch."""
        self._backward_batches += 1

    def gradient(self, outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> tuple[Any, ...]:
        """`torch.autograd.grad`, counted as the backward pass of one batch."""
        self.count_backward()
        gradients: tuple[Any, ...] = torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        return gradients

    # evaluation

    @contextlib.contextmanager
    def measuring(self) -> Iterator[Snapshot]:
        """The model in the state that is measured; on leaving, everything is as it was.

        Yields:
            What the model held on entering. Inside another `measuring()` of the problem it is that one's.

        Raises:
            InvalidProblem: The model's parameters are not those that the problem was made with.
        """
        with own_arithmetic():
            if self._held is not None:
                with torch.enable_grad():
                    yield self._held
                return
            checks.check_not_stale(self.model, self.params, self._kinds)
            is_evaluated = self.batchnorm == "running" and self.dropout is None
            state = isolation.isolated(
                self.model,
                self.device,
                batchnorm=self.batchnorm,
                dropout=self.dropout is not None,
                norms=() if is_evaluated else self._own_norms()[0],
            )
            with state as self._held:
                try:
                    yield self._held
                finally:
                    self._held = None

    def data(self) -> Generator[tuple[int, Batch], None, None]:
        """The measured batches in their order, on the model's device. Close it if you may leave it before its end."""
        index = -1
        batches = self.batches
        with isolation.loader_generators_kept(batches):
            for index, batch in enumerate(readable(batches)):
                self._batches_seen = max(self._batches_seen, index + 1)
                yield index, self._pair(index, batch)
        if index < 0:
            raise InvalidProblem(NO_BATCHES)

    def draws(self, seed: int) -> Generator[Batch, None, None]:
        """Batches from the loader over and over, as training sees them: all of it, shuffled and augmented anew.

        Call it inside `measuring()`, and close it.

        Args:
            seed: It fixes what is drawn; the next epoch has the next seed.
        """
        with contextlib.closing(self.source.draws(seed)) as batches:
            for index, batch in enumerate(batches):
                yield self._pair(index, batch)

    def _pair(self, index: int, batch: Any) -> Batch:
        pair: Batch = to_device(as_pair(index, batch, self.model, self.loss), self.device)
        return pair

    def evaluations(self) -> Generator[Evaluation, None, None]:
        """Forward passes over all batches, each with its graph, one at a time."""
        with self.measuring(), contextlib.closing(self.data()) as data:
            for index, batch in data:
                yield self.evaluate(index, batch)

    def forward(self, index: int, inputs: Any) -> Any:
        """The model's outputs on one batch, whose index fixes what the model draws; call it inside `measuring()`."""
        seed = (self.dropout or 0) + index
        isolation.seed_generators(seed, self.device)
        for generator in self._held.generators if self._held is not None else ():
            generator.manual_seed(seed)
        is_first = self._held is not None and self._draws is None
        before = isolation.generator_states(self.device) if is_first else None
        self._forward_batches += 1
        with explained(lambda error: why_call_failed(self.model, index, inputs, error)):
            if why := why_unfit(self.model, inputs):
                raise InvalidProblem(f"batch {index} {why}")
            outputs = call(self.model, inputs)
        if before is not None:
            self._draws = not isolation.generator_states(self.device).is_same_as(before)
        return outputs

    def evaluate(self, index: int, batch: Batch) -> Evaluation:
        """Outputs and loss of one batch; call it inside `measuring()`."""
        return self.evaluate_outputs(index, batch, self.forward(index, batch[0]))

    def evaluate_outputs(self, index: int, batch: Batch, outputs: Any) -> Evaluation:
        """The loss of one batch whose outputs are known."""
        why_not_finite = functools.partial(self._why_not_finite, index, batch)
        return self._loss.evaluate(index, outputs, batch, why_not_finite, is_one_batch=self.is_one_batch)

    def loss_of(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch; call it inside `measuring()`.

        Of a batch that has been evaluated before, at other weights, it is a forward pass and no more.
        """
        outputs = self.forward(index, batch[0])
        if not self._loss.is_known:
            return self.evaluate_outputs(index, batch, outputs).loss
        return self._loss_value(index, batch, outputs)

    def training_loss(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch as an optimizer sees it, be it a mean or a sum; call it inside `measuring()`."""
        return self._loss_value(index, batch, self.forward(index, batch[0]))

    def raw_loss(self, outputs: Any, targets: Any, index: int = 0) -> Any:
        """What the loss returns, be it NaN, a sum or no number at all; call it inside `measuring()`.

        Raises:
            InvalidProblem: The loss fails on these outputs and targets; it says how.
        """
        return self._loss.raw(index, outputs, targets)

    def loss_of_outputs(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss () as a function of any outputs and targets."""
        return self._loss.value(0, outputs, targets, lambda: "the loss is NaN or inf")

    def _loss_value(self, index: int, batch: Batch, outputs: Any) -> Tensor:
        return self._loss.value(index, outputs, batch[1], lambda: self._why_not_finite(index, batch))

    def _why_not_finite(self, index: int, batch: Batch) -> str:
        return checks.why_not_finite(self.model, index, batch, lambda: self.forward(index, batch[0]))

    def mean_loss(self) -> Tensor:
        """L (), by a forward pass alone, which builds no graph; call it inside `measuring()`."""
        with torch.no_grad():
            mean: Tensor = self._mean_over_batches(lambda loss: [loss])[0]
        return mean

    def loss_and_gradients(self, params: Mapping[str, nn.Parameter] | None = None) -> tuple[Tensor, Gradients]:
        """L (), and its gradient with respect to some parameters; call it inside `measuring()`.

        Batches count by their weight. `.grad` is neither read nor written.

        Args:
            params: By name; None for all that are trainable. Autograd leaves out what lies before them.
        """
        params = self.params if params is None else params
        wanted = list(params.values())

        def differentiated(loss: Tensor) -> list[Any]:
            return [loss.detach(), *self.gradient(loss, wanted, allow_unused=True)]

        loss, *gradients = self._mean_over_batches(differentiated)
        return loss, dict(zip(params, gradients, strict=True))

    def _mean_over_batches(self, values_of: Callable[[Tensor], list[Any]]) -> list[Any]:
        """The mean of what is made of each batch's loss; None counts as zero, and one batch is not rounded."""
        mean: list[Any] = []
        weight = 0.0
        with contextlib.closing(self.data()) as data:
            for index, batch in data:
                if self.is_one_batch:
                    return values_of(self.loss_of(index, batch))
                evaluation = self.evaluate(index, batch)
                weight += evaluation.weight
                values = values_of(evaluation.loss)
                mean = merged(mean, values, evaluation.weight / weight) if mean else values
        return mean

    # the same on every pass

    @own_arithmetic()
    def check(self) -> None:
        """Raise `NotDeterministic`, naming the cause, if two passes would not see the same problem.

        Operators, which pass over the data many times, call it once. It costs two forward passes of the first batch.
        """
        if not self.is_checked:
            with self.measuring(), torch.no_grad(), contextlib.closing(self.data()) as data:
                index, batch = next(data)
                if self.dropout is None:  # what trains may well change
                    outputs = checks.check_model(self.model, lambda: self.forward(index, batch[0]))
                    checks.check_loss(lambda: self._loss_value(index, batch, outputs))
            self.is_checked = True

    @contextlib.contextmanager
    def checked_if_in_doubt(self) -> Iterator[None]:
        """Call `check()` only if the first pass, run inside, leaves a doubt that the next sees the same problem.

        A model whose pass changes nothing that it holds gives the same outputs again: then the passes of a check are
        saved.
        """
        before = isolation.movable(self.model, self.loss)
        yield
        if not isolation.movable(self.model, self.loss).is_same_as(before):
            self.check()


def merged(mean: Sequence[Tensor | None], new: Sequence[Tensor | None], share: float) -> list[Tensor | None]:
    """The running mean with a batch of this share of all terms so far."""
    merged: list[Tensor | None] = []
    for b, n in zip(mean, new, strict=True):
        if b is None or n is None:
            merged.append(b * (1 - share) if b is not None else n * share if n is not None else None)
        else:
            merged.append(b.lerp(n, share))
    return merged
