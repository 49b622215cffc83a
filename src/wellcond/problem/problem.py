"""`Problem`: a model, its loss and its data, evaluated without changing any of them.

Users need the arguments of `Problem`, its attributes, `select`, `norms`, `notes`, `cost` and `check`. The sections "for
measurements" are the interface between the problem and the functions that measure it.
"""

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
from wellcond.network import checks
from wellcond.network.calling import call, dtype_name, group_of, to_device, unwrapped, why_call_failed, why_unfit
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import (
    own_arithmetic,
    passes,
    precision_now,
    surrounding_autocast,
    trained_in,
)
from wellcond.network.isolation.precision import Precision, scaled_gradient
from wellcond.network.isolation.snapshot import Snapshot
from wellcond.network.norms import Found, OwnNorms, names_of_norms
from wellcond.network.whole import data_share, holds_shards, refresh, state_of_shards, syncs_norms, whole_model
from wellcond.problem.batches import NO_BATCHES, Source, as_pair, own_copies, readable
from wellcond.problem.evaluation import Evaluation, RecognizedLoss, explained
from wellcond.problem.loss.likelihoods import Likelihood
from wellcond.problem.loss.losses import check_is_loss
from wellcond.problem.loss.outputs import Loss, own_loss
from wellcond.problem.not_finite import why_not_finite
from wellcond.problem.ranks.means import mean_gradients
from wellcond.problem.ranks.orders import Member, Order, look_after_others
from wellcond.problem.ranks.team import Team
from wellcond.problem.training_step import NoTargets, Step, TrainingStep, arguments_in
from wellcond.results import Cost

Batch = tuple[Any, Any]
STALE_COPY = (
    "the weights have changed since the problem was made. Calls of all processes gather them again; what is measured "
    "by each process for itself needs a new problem, made in all processes."
)
Gradients = dict[str, Tensor | None]
"""∇L of parameters by name; None for an unused one, which an optimizer skips, unlike a gradient of zero."""


class Problem:
    """A model, its loss and its batches: the one input of every measurement.

    Evaluating a problem changes nothing of yours: modes, buffers, counters, lists and dicts of modules and of the loss,
    random number generators, hooks and `.grad` are restored, also after an exception.

    Inference mode and gradient hooks of parameters and modules are switched off; a hook that `forward` sets on its own
    tensors still runs, like any custom backward. Autocast and TF32 are off too, but for what trains or looks at
    training: inspection, trial and probes of `diagnose`, the races of `suggest_lr`, and `treat`. One thread measures at
    a time; others wait.

    Args:
        model: Any `nn.Module`; `torch.compile`d and DDP-wrapped ones are measured through the module inside.
        loss: `loss(outputs, targets)` → scalar, the *mean* over the batch; several terms are summed. None: the model
            returns its loss, as `.loss`, `["loss"]`, a number in a tuple, or its only output.
        batches: A `DataLoader`, a list of batches, or one batch. Of a loader that shuffles or augments, or has no
            length, a few batches are held, and `held` says how many. A batch is `(inputs, targets)`,
            `(inputs, targets, weights)`, a dict with labels, or one tensor, its own target: see `as_pair`. Inputs are a
            tensor, a tuple (`model(*inputs)`) or a dict (`model(**inputs)`), and are moved to the model's device.
        batchnorm: `"batch"`, the statistics of each batch with gradients through them, as in training; or
            `"running"`, the running statistics, as in evaluation. The same weights can differ 25-fold between the two.
            It applies to every norm that has both, also your own; modules in the loss stay in their own mode.
        dropout: None turns dropout off; a seed keeps it on, with the same masks on every pass. All other random numbers
            of the model and the loss are the same on every pass too.
        autocast: `torch.bfloat16` or `torch.float16` if the script trains under `torch.autocast`. It is known without
            it if the problem is made, or diagnosed, inside of one. Curvature and conditioning stay in the precision
            of the weights.
        scaler: The `torch.amp.GradScaler` of the script, if it has one; it is copied.

    Attributes:
        model: The module that is measured, without its wrappers.
        params: Trainable parameters by name.
        size: Number of trainable parameters.
        dtype: Their dtype.
        device: Their device.
        source: The batches as passed and as measured; another problem created with it shares the held batches.
        precision: The autocast and the loss scale that the model is trained with.

    Raises:
        InvalidProblem: The model has no trainable parameters, or the batches cannot be read more than once.

    Example:
        >>> problem = Problem(nn.Linear(3, 2), nn.MSELoss(), (torch.ones(4, 3), torch.zeros(4, 2)))
        >>> problem.size
        8
    """

    @classmethod
    def from_step(
        cls,
        model: nn.Module,
        training_step: Step,
        batches: Any,
        batchnorm: Literal["batch", "running"] = "batch",
        *,
        dropout: int | None = None,
        autocast: torch.dtype | None = None,
        scaler: Any = None,
    ) -> Problem:
        """A problem whose loss comes from a training step: DQN, SimCLR, DDPM, several losses, a Lightning module.

        All that needs a loss, layers and gradients works: `diagnose`, `suggest_lr`, `treat`, `max_lr`, the Hessian,
        conditioning, neurons. A diagnosis compares outputs with targets if the step calls the model once, and its loss
        is one of these outputs and of tensors of the batch. What else needs both does not work, and says so: GGN and
        Fisher.

        Args:
            model: The model that is trained. Copies of it are trained by the same step, so the step must use the model
                that it is called with; other networks, such as a target network, it may take from anywhere.
            training_step: `training_step(model, batch)` → the loss, a tensor with one number, or a dict with `"loss"`.
                It does not call `backward()`. Of a Lightning module: `lambda m, batch: m.training_step(batch, 0)`.
            batches: A `DataLoader`, a list of batches, or one batch that is no list. The step gets a batch as it is, on
                the device of the model.
            batchnorm: As in `Problem`.
            dropout: As in `Problem`.
            autocast: As in `Problem`. A step that enters `torch.autocast` itself needs none.
            scaler: As in `Problem`.

        Raises:
            InvalidProblem: As in `Problem`; or the step is no function of a model and a batch.

        Example:
            >>> def training_step(model, batch):
            ...     first, second = model(batch), model(batch + 0.1 * torch.randn_like(batch))
            ...     return (first - second).square().mean()
            >>> problem = Problem.from_step(nn.Linear(3, 2), training_step, torch.ones(4, 3))
            >>> problem.size, problem.loss_and_gradients()[0].shape
            (8, torch.Size([]))
        """
        if isinstance(batches, list):  # also of tensors, which `Problem` would take for one batch
            batches = [(batch, NoTargets) for batch in batches]
        step = TrainingStep(training_step)
        return cls(model, step, batches, batchnorm, dropout=dropout, autocast=autocast, scaler=scaler)

    @own_arithmetic()  # another thread may be measuring the model, which changes its state
    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None,
        batches: Any,
        batchnorm: Literal["batch", "running"] = "batch",
        *,
        dropout: int | None = None,
        autocast: torch.dtype | None = None,
        scaler: Any = None,
    ) -> None:
        if batchnorm not in ("batch", "running"):
            what = repr(batchnorm) if isinstance(batchnorm, str) else f"a {type(batchnorm).__name__}"
            raise InvalidProblem(
                f'batchnorm is {what}; write "batch" or "running". A batch is one argument: '
                "wc.Problem(model, loss, (inputs, targets))."
            )
        checks.check_is_model(model)
        self.model, self.sharded = unwrapped(model), None
        group = group_of(model)
        self.team = None if group is None else Team.of(group, "Problem")
        if self.team is not None:
            self.team.meet("Problem", type(self.model).__name__)
            self.data_share = data_share(self.model)
            if holds_shards(self.model) or syncs_norms(self.model):
                self.sharded, self.model = self.model, whole_model(self.model)
                self._shards = state_of_shards(self.sharded)
        self.batchnorm = batchnorm
        self.dropout = dropout
        self.params = checks.trainable(self.model)
        self._kinds = {name: checks.kind_of(p) for name, p in self.params.items()}
        self.dtype, self.device = next(iter(self._kinds.values()))
        self.size = sum(p.numel() for p in self.params.values())
        self.precision = self._precision(checks.checked_precision(autocast, scaler))
        self.batches = batches
        self.is_checked = False
        self.loss = loss
        self._draws: bool | None = None
        self._norms = OwnNorms()
        self._held: Snapshot | None = None
        self._batches_seen = 1
        self._forward_passes = self._backward_passes = 0
        self._copies_and_products = Cost()

    def _precision(self, own: Precision) -> Precision:
        """That of the problem, or else that of the call it is made in: what derives from a problem trains alike."""
        now = precision_now() or Precision(surrounding_autocast(self.device.type))
        return Precision(own.autocast or now.autocast, own.scaler or now.scaler)

    def __repr__(self) -> str:
        return f"Problem({type(self.model).__name__}, {self.size:,} parameters, batchnorm={self.batchnorm!r})"

    # what was passed

    @property
    def loss(self) -> Loss:
        """The loss; `own_loss` if the model returns it, a `TrainingStep` if a step does. Another may be assigned."""
        return self._loss.loss

    @loss.setter
    def loss(self, loss: Loss | None) -> None:
        check_is_loss(loss)
        self._loss = RecognizedLoss(own_loss if loss is None else loss, self.model, self.dropout or 0)
        self.is_checked = False

    @property
    def batches(self) -> Any:
        """The batches that are measured: the list or loader that was passed, or a list of the held batches.

        Other batches may be assigned.
        """
        return self.source.fixed[0]

    @batches.setter
    def batches(self, batches: Any) -> None:
        rank = 0 if self.team is None else self.team.rank
        self.source = batches if isinstance(batches, Source) else Source(batches, self.device, rank)

    @property
    def held(self) -> str:
        """A sentence on which batches of the loader are held, and why; empty if all data are measured."""
        return self.source.fixed[1]

    @property
    def notes(self) -> list[str]:
        """Choices that were made for the problem: held batches, and, once evaluated, random numbers that are fixed."""
        notes = [self.held] if self.held else []
        drawing = [name for name, draws in (("model", self._draws), ("loss", self._loss.draws)) if draws]
        if drawing:
            notes.append(
                f"random numbers of the {' and the '.join(drawing)} are fixed: every pass of a batch draws the same"
            )
        if len(self._loss.summed) > 1:
            notes.append(f"the loss returns {len(self._loss.summed)} terms, and their sum is measured")
        return notes

    @property
    def likelihood(self) -> Likelihood | None:
        """The likelihood whose mean negative logarithm the loss is; known after the first evaluation."""
        return self._loss.likelihood

    def norms(self) -> tuple[list[str], list[str]]:
        """Names of the layers that `batchnorm` applies to, and of other layers that keep statistics.

        The latter are measured in evaluation mode: in training mode they return other outputs on every pass.
        """
        return names_of_norms(self.model, self._own_norms())

    def select(self, names: str | Sequence[str]) -> dict[str, nn.Parameter]:
        """Trainable parameters by their names or the names of their modules, in the model's order.

        Args:
            names: One name or several.

        Raises:
            UnknownLayer: A name is neither a parameter nor a module.
            InvalidProblem: A name is that of frozen parameters only.
        """
        # tied weights have several names, and each is accepted
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

    @property
    def cost(self) -> Cost:
        """All passes so far. The cost of a measurement is the difference between after and before."""
        return self._copies_and_products + Cost(self._forward_passes, self._backward_passes)

    @own_arithmetic()
    def check(self) -> None:
        """Check that a second pass gives the same outputs and loss, at the cost of two forward passes of one batch.

        Operators, which pass over the data many times, call it once.

        Raises:
            NotDeterministic: It does not; the message names the cause.
        """
        if not self.is_checked:
            with self.measuring(), torch.no_grad(), contextlib.closing(self.data()) as data:
                index, batch = next(data)
                if self.dropout is None:  # in training mode, layers may change their state
                    outputs = checks.check_model(
                        self.model, lambda: self.forward(index, batch[0]), in_step=isinstance(self.loss, TrainingStep)
                    )
                    checks.check_loss(lambda: self._loss_value(index, batch, outputs))
            self.is_checked = True

    # for measurements: what the problem is

    @property
    def loader(self) -> Any:
        """The batches as they were passed, one batch as a list of one; copies of the model are trained on these."""
        return self.source.loader

    @property
    def couples_examples(self) -> bool:
        """Whether a BatchNorm, torch's or another, makes an example's output depend on the others of its batch."""
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        of_batch = any(self.batchnorm == "batch" or not m.track_running_stats for m in norms)
        return of_batch or (self.batchnorm == "batch" and bool(self._own_norms()[0]))

    def _own_norms(self) -> Found:
        def run(modules: Collection[nn.Module]) -> None:
            evaluated = isolation.isolated(self.model, self.device, batchnorm="running", dropout=False, norms=modules)
            with evaluated, contextlib.closing(self.data()) as data:
                index, batch = next(data)
                self.forward(index, batch[0])

        return self._norms.of(self.model, run)

    @property
    def member(self) -> Member | None:
        """This process among those that share passes over the data, if they do and this one leads."""
        member = getattr(self.source, "member", None)
        return member if member is not None and member.can_share(self) else None

    def over_all(self, source: Source) -> Problem:
        """The same problem over the batches of all processes, for the one that leads."""
        with self.as_trained():
            problem = Problem(self.model, self.loss, source, self.batchnorm, dropout=self.dropout)
        problem.precision = self.precision
        return problem

    def refresh(self) -> None:
        """Give the copy of a sharded model that is measured its present weights. Every process calls it."""
        if self.sharded is not None:
            refresh(self.model, self.sharded)
            self._shards = state_of_shards(self.sharded)

    def ask_all(self, member: Member, order: Order, *args: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """The answer of all processes to an order, whose cost is that of this one's share: they work side by side."""
        before = member.problem.cost
        answer = member.ask(order, *args, tensors=tensors)
        self.count_copies(member.problem.cost - before)
        return answer

    @property
    def is_one_batch(self) -> bool:
        """Whether the data are one fixed batch, whose graph can be reused."""
        batches = self.batches
        return isinstance(batches, (list, tuple)) and len(batches) == 1

    # for measurements: evaluation, which changes nothing of the user's

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
            with state as self._held:
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
        batches = self.batches
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
        pair: Batch = to_device(as_pair(index, batch, self.model, self.loss), self.device)
        return pair

    def evaluations(self) -> Generator[Evaluation, None, None]:
        """Evaluate all batches, one at a time, each with its graph."""
        with self.measuring(), contextlib.closing(self.data()) as data:
            for index, batch in data:
                yield self.evaluate(index, batch)

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
        if isinstance(self.loss, TrainingStep):
            with passes(self.device):
                return self.loss.run(self.model, inputs)
        if why := why_unfit(self.model, inputs):
            raise InvalidProblem(f"batch {index} {why}")
        with passes(self.device):
            return call(self.model, inputs)

    def model_inputs(self, index: int, batch: Batch) -> Any:
        """What the model is called with on one batch of `data()`.

        Raises:
            Unsupported: A training step calls parts of the model only.
        """
        if not isinstance(self.loss, TrainingStep):
            return batch[0]
        with self.measuring():
            return arguments_in(self.model, lambda: self.forward(index, batch[0]))

    def evaluate(self, index: int, batch: Batch) -> Evaluation:
        """Outputs and loss of one batch; call it inside `measuring()`."""
        return self.evaluate_outputs(index, batch, self.forward(index, batch[0]))

    def evaluate_outputs(self, index: int, batch: Batch, outputs: Any) -> Evaluation:
        """The loss of one batch whose outputs are known."""
        why = functools.partial(self._why_not_finite, index, batch)
        return self._loss.evaluate(index, outputs, batch, why, is_one_batch=self.is_one_batch)

    def loss_of(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch; call it inside `measuring()`.

        For a batch that has been evaluated before, at other weights, this is only a forward pass.
        """
        outputs = self.forward(index, batch[0])
        if not self._loss.is_known:
            return self.evaluate_outputs(index, batch, outputs).loss
        return self._loss_value(index, batch, outputs)

    def training_loss(self, index: int, batch: Batch) -> Tensor:
        """The loss of one batch as an optimizer sees it, be it a mean or a sum; call it inside `measuring()`."""
        return self._loss_value(index, batch, self.forward(index, batch[0]))

    def raw_loss(self, outputs: Any, targets: Any, index: int = 0) -> Any:
        """What the loss returns, unchecked: maybe NaN, a sum, or not a number. Call it inside `measuring()`.

        Raises:
            InvalidProblem: The loss fails on these outputs and targets.
        """
        return self._loss.raw(index, outputs, targets)

    def loss_adds_up(self, outputs: Any, targets: Any, index: int = 0) -> bool:
        """Whether the loss is a sum over the examples and not a mean; False if that cannot be seen.

        Call it inside `measuring()`.
        """
        return self._loss.adds_up(index, outputs, targets)

    def loss_of_outputs(self, outputs: Tensor, targets: Any) -> Tensor:
        """The loss () as a function of any outputs and targets."""
        return self._loss.value(0, outputs, targets, lambda: "the loss is NaN or infinite.")

    def _loss_value(self, index: int, batch: Batch, outputs: Any) -> Tensor:
        return self._loss.value(index, outputs, batch[1], lambda: self._why_not_finite(index, batch))

    def _why_not_finite(self, index: int, batch: Batch) -> str:
        return why_not_finite(self.model, index, batch, lambda: self.forward(index, batch[0]))

    def mean_loss(self) -> Tensor:
        """L (), by forward passes without a graph; call it inside `measuring()`."""
        if (member := self.member) is not None:
            shared: Tensor = self.ask_all(member, mean_gradients, [])[0]
            return shared
        with torch.no_grad():
            mean: Tensor = self._mean_over_batches(lambda loss: [loss])[0]
        return mean

    def loss_and_gradients(self, params: Mapping[str, nn.Parameter] | None = None) -> tuple[Tensor, Gradients]:
        """L (), and its gradient with respect to some parameters; call it inside `measuring()`.

        Batches count by their weight. `.grad` is neither read nor written.

        Args:
            params: Parameters by name; None for all that are trainable. Autograd stops at the first of them.
        """
        params = self.params if params is None else params
        tensors = list(params.values())
        if (member := self.member) is not None:
            loss, gradients = self.ask_all(member, mean_gradients, list(params))
            return loss, dict(zip(params, gradients, strict=True))

        def differentiated(loss: Tensor) -> list[Any]:
            return [loss.detach(), *self.gradient(loss, tensors, allow_unused=True)]

        loss, *gradients = self._mean_over_batches(differentiated)
        return loss, dict(zip(params, gradients, strict=True))

    def _mean_over_batches(self, values_of: Callable[[Tensor], list[Any]]) -> list[Any]:
        """The mean over batches of values computed from each loss; None counts as zero, one batch is not rounded."""
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

    @contextlib.contextmanager
    def checked_if_in_doubt(self) -> Iterator[None]:
        """Around a first pass: call `check()` afterwards only if the pass changed something that the model holds.

        If it did not, a second pass would give the same outputs, and the passes of a check are saved.
        """
        before = isolation.movable(self.model, self.loss)
        yield
        if not isolation.movable(self.model, self.loss).is_same_as(before):
            self.check()

    # for measurements: what the passes cost

    @property
    def batch_count(self) -> int:
        """Number of batches in one pass over the data; of a loader that has no length, those read so far."""
        return (length_hint(self.batches, 0) if self.source.is_read else 0) or self._batches_seen

    def count_products(self, matvecs: int, passes: float) -> None:
        """Add products with a curvature matrix, and the forward+backward passes of one batch that they took."""
        self._copies_and_products += Cost(matvecs=matvecs, product_passes=passes)

    def count_copies(self, cost: Cost) -> None:
        """Add the passes of copies of the model."""
        self._copies_and_products += cost

    def count_backward(self) -> None:
        """Count the backward pass of one batch."""
        self._backward_passes += 1

    def gradient(self, outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> tuple[Any, ...]:
        """`torch.autograd.grad`, counted as the backward pass of one batch.

        Where passes are computed as in training, the loss is scaled as there, and the gradient divided again.
        """
        self.count_backward()
        now = precision_now()
        if now is not None and now.scaler is not None and isinstance(outputs, Tensor) and grad_outputs is None:
            return scaled_gradient(outputs, inputs, float(now.scaler["scale"]), **options)[0]
        gradients: tuple[Any, ...] = torch.autograd.grad(outputs, inputs, grad_outputs, **options)
        return gradients


def merged(mean: Sequence[Tensor | None], new: Sequence[Tensor | None], share: float) -> list[Tensor | None]:
    """Update a running mean with the values of a batch, whose share of all terms so far is `share`."""
    merged: list[Tensor | None] = []
    for b, n in zip(mean, new, strict=True):
        if b is None or n is None:
            merged.append(b * (1 - share) if b is not None else n * share if n is not None else None)
        else:
            merged.append(b.lerp(n, share))
    return merged
