"""What a training can be recorded with: this library's recorder, its peers, and a few lines by hand.

A tool wraps the backward pass, and sees every step after the optimizer's. Its numbers stay in memory, or in a folder
that is removed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import wellcond as wc

EVERY = 10
"""Steps between two records of a tool whose interval is chosen."""
EVERY_OF_COCKPIT = 50
"""Steps between two of Cockpit's: ten in 500 steps."""


class Tool:
    """A training without any tool."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, clock: Callable[[], float]):
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.steps = 0

    def backward(self, value: Tensor, outputs: Tensor, targets: Tensor) -> None:
        value.backward()

    def after_step(self, value: Tensor, batch: tuple[Tensor, Tensor]) -> None:
        self.steps += 1

    def close(self) -> None:
        pass


class Wellcond(Tool):
    """This library's recorder, at its default budget, in memory."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, clock: Callable[[], float]):
        self.recorder = wc.Recorder(model, optimizer, loss, clock=clock)

    def after_step(self, value: Tensor, batch: tuple[Tensor, Tensor]) -> None:
        self.recorder.step(value, batch)

    def close(self) -> None:
        self.recorder.close()


class ByHand(Tool):
    """The norm of every parameter and of its gradient, every tenth step."""

    def after_step(self, value: Tensor, batch: tuple[Tensor, Tensor]) -> None:
        self.steps += 1
        if self.steps % EVERY == 0:
            params = [p for p in self.model.parameters() if p.grad is not None]
            self.norms = [t.detach().norm().item() for p in params for t in (p.grad, p) if t is not None]


class Torchmortem(Tool):
    """torchmortem's Autopsy, as it comes."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, clock: Callable[[], float]):
        from torchmortem import Autopsy

        logging.getLogger("torchmortem").setLevel(logging.CRITICAL)
        self.autopsy = Autopsy(model, optimizer=optimizer)
        self.autopsy.__enter__()

    def after_step(self, value: Tensor, batch: tuple[Tensor, Tensor]) -> None:
        self.autopsy.step(loss=float(value))

    def close(self) -> None:
        self.autopsy.__exit__(None, None, None)


class WandbWatch(Tool):
    """`wandb.watch(log="all")` every tenth step, and the loss of every step, without a network."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, clock: Callable[[], float]):
        import wandb

        self.folder = tempfile.TemporaryDirectory()
        settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
        self.run = wandb.init(mode="offline", dir=self.folder.name, settings=settings)
        self.run.watch(model, log="all", log_freq=EVERY)

    def after_step(self, value: Tensor, batch: tuple[Tensor, Tensor]) -> None:
        self.run.log({"loss": float(value)})

    def close(self) -> None:
        self.run.finish()
        self.folder.cleanup()


class CockpitEconomy(Tool):
    """The "economy" quantities of Cockpit, every fiftieth step: a record of all quantities takes over a minute here."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, clock: Callable[[], float]):
        if not isinstance(loss, nn.CrossEntropyLoss):
            raise NotImplementedError("a loss of one label for each example is asked for")
        with _with_pkg_resources():
            from cockpit import Cockpit
            from cockpit.utils import schedules
            from cockpit.utils.configuration import configuration
        from backpack import extend

        super().__init__(extend(model), optimizer, extend(loss), clock)
        self.cockpit = Cockpit(model.parameters(), configuration("economy", schedules.linear(EVERY_OF_COCKPIT)))
        self.each = nn.CrossEntropyLoss(reduction="none")

    def backward(self, value: Tensor, outputs: Tensor, targets: Tensor) -> None:
        info = {
            "batch_size": len(targets),
            "individual_losses": self.each(outputs, targets),
            "loss": value,
            "optimizer": self.optimizer,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with self.cockpit(self.steps, info=info):
                value.backward(create_graph=self.cockpit.create_graph(self.steps))


@contextlib.contextmanager
def _with_pkg_resources() -> Iterator[None]:
    """Cockpit asks it for its own version as it is imported, and setuptools no longer has it."""
    if importlib.util.find_spec("pkg_resources"):
        yield
        return
    module: Any = types.ModuleType("pkg_resources")
    module.DistributionNotFound = LookupError

    def get_distribution(name: str) -> Any:
        raise LookupError(name)

    module.get_distribution = get_distribution
    sys.modules["pkg_resources"] = module
    try:
        yield
    finally:
        del sys.modules["pkg_resources"]


PLAIN, AGAIN, WELLCOND = "plain", "plain again", "wellcond"
PEERS: dict[str, tuple[str, type[Tool]]] = {
    "torchmortem": ("torchmortem", Torchmortem),
    "wandb.watch": ("wandb", WandbWatch),
    "Cockpit": ("cockpit", CockpitEconomy),
}
"""With the module that each needs."""


def installed(device: str) -> dict[str, type[Tool]]:
    """The tools to compare: on a GPU without the peers, which are not installed there."""
    peers = {
        name: tool for name, (module, tool) in PEERS.items() if device == "cpu" and importlib.util.find_spec(module)
    }
    return {PLAIN: Tool, AGAIN: Tool, WELLCOND: Wellcond, "norms by hand": ByHand, **peers}
