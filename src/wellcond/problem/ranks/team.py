"""`Team`: the processes of a training, and how they talk: one leads, the others do what it tells them."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed

from wellcond.errors import InvalidProblem, LostRank

PATIENCE: Final = timedelta(seconds=20)
"""How long processes wait for each other at the beginning of a call."""
LONGEST: Final = timedelta(hours=12)
"""How long a process waits for an order while another measures; one that ends is noticed at once."""
LATE = """\
not every process called {name} within {seconds:g} s: {error}
Every process must make the call, at the same place of the script: not inside `if rank == 0:`."""
LOST = "a process of this training has ended, or does not answer any more, during {name}: {error}"

_teams: dict[Any, Team] = {}


class Team:
    """The processes that train one model.

    They talk over a group of their own, on gloo: what the training sends is not disturbed, and an end of a process is
    noticed by all others as soon as its connections close.

    Args:
        group: The process group of the training.

    Attributes:
        rank: The number of this process in it.
        size: The number of processes.
        is_busy: Whether this process is in a call that is measured together.
        wire: Bytes that this process has sent, by what for.
    """

    def __init__(self, group: Any) -> None:
        self.group = group
        self.rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        ranks = distributed.get_process_group_ranks(group)
        self._control = distributed.new_group(
            ranks, timeout=LONGEST, backend="gloo", use_local_synchronization=True, group_desc="wellcond"
        )
        self.is_busy = False
        self.wire: dict[str, int] = {}
        self._doing = "a measurement"
        self._lost = ""

    @classmethod
    def of(cls, group: Any) -> Team:
        """The team of a group, always the same one. Every process calls it."""
        if group not in _teams or _teams[group]._lost:
            _teams[group] = cls(group)
        return _teams[group]

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self.rank == 0

    def meet(self, name: str) -> None:
        """Wait until all processes make the same call.

        Raises:
            LostRank: One does not come.
            InvalidProblem: They make different calls.
        """
        self._doing = name
        with self._talking(LATE.format(name=name, seconds=PATIENCE.total_seconds(), error="{error}")):
            distributed.monitored_barrier(self._control, PATIENCE, wait_all_ranks=True)
        calls = self.everyone(name)
        if len(set(calls)) > 1:
            named = ", ".join(f"rank {rank} {call}" for rank, call in enumerate(calls))
            raise InvalidProblem(f"the processes make different calls: {named}. All must make the same.")

    # messages

    def tell(self, message: Any = None) -> Any:
        """Send a message from the process that leads to all others; all return it."""
        with self._talking():
            content = _packed(message) if self.leads else torch.empty(0, dtype=torch.uint8)
            length = torch.tensor([len(content)])
            distributed.broadcast(length, group=self._control, group_src=0)
            content = content if self.leads else torch.empty(int(length), dtype=torch.uint8)
            distributed.broadcast(content, group=self._control, group_src=0)
            if self.leads:
                self._count("orders", len(content) * (self.size - 1))
        return message if self.leads else _unpacked(content)

    def collect(self, message: Any) -> list[Any]:
        """Send a message of every process to the one that leads, which gets all, by rank; others get none."""
        with self._talking():
            if self.leads:
                return [message, *(self._received(rank) for rank in range(1, self.size))]
            content = _packed(message)
            distributed.send(torch.tensor([len(content)]), group=self._control, group_dst=0)
            distributed.send(content, group=self._control, group_dst=0)
            self._count("answers", len(content))
        return []

    def everyone(self, message: Any) -> list[Any]:
        """The messages of all processes, by rank, for all of them."""
        messages: list[Any] = self.tell(self.collect(message))
        return messages

    def hand_out(self, messages: list[Any]) -> Any:
        """Send each process its own message, from the one that leads; returns that of this process."""
        with self._talking():
            if not self.leads:
                return self._received(0)
            for rank, message in enumerate(messages[1:], start=1):
                content = _packed(message)
                distributed.send(torch.tensor([len(content)]), group=self._control, group_dst=rank)
                distributed.send(content, group=self._control, group_dst=rank)
                self._count("batches", len(content))
        return messages[0]

    def share(self, tensors: list[Tensor], what: str = "vectors") -> list[Tensor]:
        """Tensors of the process that leads, written into tensors of the same shapes in all others.

        Args:
            tensors: In the others, tensors whose values are replaced.
            what: What they are, for the count of bytes.
        """
        with self._talking():
            for tensor in tensors:
                distributed.broadcast(tensor, group=self._over(tensor), group_src=0)
                self._count(what, tensor.numel() * tensor.element_size())
        return tensors

    def add(self, tensors: list[Tensor], what: str = "sums") -> list[Tensor]:
        """Sums over all processes of tensors that all of them have, for all of them.

        Args:
            tensors: Tensors of one dtype and device, the same number and shapes in every process.
            what: What they are, for the count of bytes.
        """
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._talking():
            distributed.all_reduce(flat, group=self._over(flat))
        # a ring sends every part twice but for one's own: 2 (n − 1)/n of the whole
        self._count(what, 2 * (self.size - 1) * flat.numel() * flat.element_size() // self.size)
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def _over(self, tensor: Tensor) -> Any:
        """The group that sends a tensor: gloo from the host's memory, and that of the training from a GPU's."""
        return self._control if tensor.device.type == "cpu" else self.group

    def _received(self, rank: int) -> Any:
        length = torch.empty(1, dtype=torch.long)
        distributed.recv(length, group=self._control, group_src=rank)
        content = torch.empty(int(length), dtype=torch.uint8)
        distributed.recv(content, group=self._control, group_src=rank)
        return _unpacked(content)

    def _count(self, what: str, size: int) -> None:
        self.wire[what] = self.wire.get(what, 0) + size

    # processes that are lost

    @property
    def is_lost(self) -> bool:
        """Whether a process has ended, so that nothing can be measured together any more."""
        return bool(self._lost)

    @contextlib.contextmanager
    def _talking(self, text: str = "") -> Iterator[None]:
        if self._lost:
            raise LostRank(self._lost)
        try:
            yield
        except RuntimeError as error:
            self._lost = (text or LOST).format(name=self._doing, error=str(error).strip().splitlines()[0])
            self.leave()
            raise LostRank(self._lost) from error

    def leave(self) -> None:
        """Close the connections, so that no other process waits for this one."""
        control, self._control = self._control, None
        self._lost = self._lost or "this process has left"
        if control is not None:
            with contextlib.suppress(RuntimeError, ValueError, AssertionError):
                distributed.destroy_process_group(control)


def _packed(message: Any) -> Tensor:
    buffer = io.BytesIO()
    pickle.dump(message, buffer, protocol=pickle.HIGHEST_PROTOCOL)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def _unpacked(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())
