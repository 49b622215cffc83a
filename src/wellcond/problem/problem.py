"""`Problem`: a model, its loss and its data, evaluated without changing any of them.

Users need the arguments of `Problem`, its attributes, `select`, `norms`, `notes`, `cost` and `check`. What it inherits
is the interface to the functions that measure it, a file for each idea: what passes cost (`pass_count`), the model in
the state that is measured (`measured_model`), and the loss of single batches and of all (`batch_losses`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from wellcond.errors import InvalidProblem, UnknownLayer
from wellcond.network import checks
from wellcond.network.calling import group_of, unwrapped
from wellcond.network.isolation import isolation
from wellcond.network.isolation.arithmetic import (
    own_arithmetic,
)
from wellcond.network.norms import names_of_norms
from wellcond.network.whole import data_share, holds_shards, refresh, state_of_shards, syncs_norms, whole_model
from wellcond.problem.batch_losses import BatchLosses
from wellcond.problem.batches import Source
from wellcond.problem.evaluation import RecognizedLoss
from wellcond.problem.loss.likelihoods import Likelihood
from wellcond.problem.loss.losses import check_is_loss
from wellcond.problem.loss.outputs import Loss, own_loss
from wellcond.problem.ranks.team import Team
from wellcond.problem.training_step import NoTargets, Step, TrainingStep
from wellcond.results import Cost

LIMITED = ("cuda",)
"""Devices whose memory is limited."""


class Problem(BatchLosses):
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
        fits: Whether its batches were made to fit into the memory of their device.
        waits_on_host: Whether what its graphs hold waits in the host's memory until it is needed.

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
        super().__init__()
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
        self.fits = False
        self.loss = loss

    @property
    def is_limited(self) -> bool:
        """Whether a call has to plan what it holds: on a GPU, in one process, for batches that were not made to fit."""
        return self.device.type in LIMITED and not self.fits and self.member is None

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
        return self._counted()

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

    # for measurements

    @property
    def loader(self) -> Any:
        """The batches as they were passed, one batch as a list of one; copies of the model are trained on these."""
        return self.source.loader

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

    @contextlib.contextmanager
    def checked_if_in_doubt(self) -> Iterator[None]:
        """Around a first pass: call `check()` afterwards only if the pass changed something that the model holds.

        If it did not, a second pass would give the same outputs, and the passes of a check are saved.
        """
        before = isolation.movable(self.model, self.loss)
        yield
        if not isolation.movable(self.model, self.loss).is_same_as(before):
            self.check()
