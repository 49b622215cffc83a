"""Who records where several processes train one model: rank 0, with the help of the others where parameters are shared.

Of DDP every process holds whole gradients, the means over all: rank 0 records alone, and nothing is sent. Of a sharded
model each holds a part of every norm: at steps that all of them know, rank 0 tells what is read of the next step.
"""

from __future__ import annotations

from typing import Any, Final

from torch import nn

from wellcond.network.calling import group_of
from wellcond.network.whole import fsdp_modules, holds_shards, syncs_norms
from wellcond.problem.ranks.team import Team

SHARDED: Final = (
    "the model is sharded over {size} processes: norms are those of whole parameters. Left out are curvature, "
    "conditioning, covariate shift and the inspection, which need whole parameters, and how gradients accumulate and "
    "are clipped"
)
ONE_OF: Final = (
    "rank 0 of {size} processes is recorded, with its own losses and activations; gradients and weights are those of "
    "all of them"
)
SYNCED: Final = "SyncBatchNorm waits for all processes, so what is measured between steps is left out"


class RecorderRanks:
    """The processes of a recorded training.

    Args:
        model: The model as it is trained, with its wrappers.

    Attributes:
        size: The number of processes; 1 if there is one.
        is_writer: Whether this one judges and writes.
        team: The processes that read a step together; None if each can by itself.
        can_probe: Whether rank 0 can call the model by itself, between steps.
        sees_calls: Whether outputs of layers are whole.
        notes: What that means for the record.
    """

    def __init__(self, model: nn.Module) -> None:
        group = group_of(model)
        self.team: Team | None = None
        self.size, self.is_writer, self.can_probe, self.sees_calls = 1, True, True, True
        self.notes: list[str] = []
        if group is None:
            return
        self.size, self.is_writer = group.size(), group.rank() == 0
        if holds_shards(model):
            self.team, self.can_probe = Team(group, "Recorder"), False
            self.sees_calls = bool(fsdp_modules(model))
            self.notes = [SHARDED.format(size=self.size)]
            return
        self.can_probe = not syncs_norms(model)
        self.notes = [ONE_OF.format(size=self.size), *([] if self.can_probe else [SYNCED])]

    @property
    def is_idle(self) -> bool:
        """Whether this process has nothing to record."""
        return not self.is_writer and self.team is None

    def leave(self) -> None:
        """End this process's part, so that no other waits for it: recording may have failed here."""
        if self.team is not None:
            self.team.leave()

    def agreed(self, plan: Any) -> Any:
        """What rank 0 plans; all processes call it at the same steps."""
        return plan if self.team is None else self.team.tell(plan)
