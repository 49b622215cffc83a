"""`Team`: the processes of a training, and how they talk: one leads, the others do what it tells them."""

from __future__ import annotations

import atexit
import contextlib
import io
import pickle
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, distributed

from wellcond.errors import InvalidProblem, LostRank, Unsupported
from wellcond.problem.ranks.meeting import PATIENCE, Meetings

LONGEST: Final = timedelta(hours=12)
"""How long a process waits for an order while another measures; one that ends is noticed at once."""
LOST = "a process of this training has ended, or does not answer any more, during {name}; its own output says why"
LEFT = "this process has left the others during {name}, so that they do not wait for it"
INSIDE = "{name} is called by one process, inside of a call that all of them make; the others do not know of it"

_teams: dict[Any, Team] = {}
_made: Counter[str] = Counter()
"""Number of teams of the same processes that were made so far."""
_connected_teams: weakref.WeakSet[Team] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Threads of gloo that are left when Python is gone end a process by an abort."""
    for team in list(_connected_teams):
        team.leave()


class Team:
    """The processes that train one model.

    They talk over a group of their own, on gloo: what the training sends is not disturbed, and an end of a process is
    noticed by all others as soon as its connections close. All of them make it, at the same time.

    Args:
        group: The process group of the training.
        name: What it is made for.

    Attributes:
        rank: The number of this process in it.
        size: The number of processes.
        is_busy: Whether this process is in a call that is measured together.
        wire: Bytes that this process has sent, by what for.

    Raises:
        LostRank: Not all processes make it.
    """

    def __init__(self, group: Any, name: str) -> None:
        ranks = sorted(distributed.get_process_group_ranks(group))
        self.group = group
        self.rank, self.size = ranks.index(distributed.get_rank()), len(ranks)
        self.is_busy = False
        self.wire: dict[str, int] = {}
        self._first = ranks[0]
        self._doing, self._lost = name, ""
        self._control: Any = None
        number = _made[str(ranks)]
        Meetings(f"new team {number}", ranks).wait(name)
        _made[str(ranks)] += 1
        self._meetings = Meetings(f"team {number}", ranks)
        with self._talking():
            self._control = _connected(f"{number} of {ranks}", self.rank, self.size)
        _connected_teams.add(self)

    @classmethod
    def of(cls, group: Any, name: str) -> Team:
        """The team of a group, always the same one while it lasts. Every process calls it."""
        if group not in _teams or _teams[group].is_lost:
            _teams[group] = cls(group, name)
        return _teams[group]

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self.rank == 0

    def meet(self, name: str, details: str = "") -> None:
        """Wait until all processes make the same call.

        Args:
            name: What they call.
            details: What else must be the same.

        Raises:
            LostRank: One does not come.
            InvalidProblem: They make different calls.
            Unsupported: It is made inside of another call, of which only this process knows.
        """
        if self.is_busy:
            raise Unsupported(INSIDE.format(name=name))
        self._doing = name
        if self._lost:
            raise LostRank(self._lost)
        try:
            self._meetings.wait(name)
            calls = self.everyone(f"{name}({details})")
        except BaseException as error:  # also Ctrl-C: the others must not wait
            self._lost = self._lost or (str(error) if isinstance(error, LostRank) else "")
            self.leave()
            raise
        if len(set(calls)) > 1:
            named = ", ".join(f"rank {rank} {call}" for rank, call in enumerate(calls))
            raise InvalidProblem(f"the processes make different calls: {named}. All must make the same.")

    # messages

    def tell(self, message: Any = None) -> Any:
        """Send a message from the process that leads to all others; all return it."""
        with self._talking():
            content = _packed(message) if self.leads else torch.empty(0, dtype=torch.uint8)
            length = torch.tensor([len(content)])
            self._broadcast(length)
            content = content if self.leads else torch.empty(int(length), dtype=torch.uint8)
            self._broadcast(content)
            if self.leads:
                self._count("orders", len(content) * (self.size - 1))
        return message if self.leads else _unpacked(content)

    def collect(self, message: Any) -> list[Any]:
        """Send a message of every process to the one that leads, which gets all, by rank; others get none."""
        with self._talking():
            if self.leads:
                return [message, *(self._received(rank) for rank in range(1, self.size))]
            self._send(message, 0, "answers")
        return []

    def everyone(self, message: Any) -> list[Any]:
        """The messages of all processes, by rank, for all of them."""
        messages: list[Any] = self.tell(self.collect(message))
        return messages

    def hand_out(self, messages: Sequence[Any]) -> Any:
        """Send each process its own message, from the one that leads; returns that of this process."""
        with self._talking():
            if not self.leads:
                return self._received(0)
            for rank, message in enumerate(messages[1:], start=1):
                self._send(message, rank, "batches")
        return messages[0]

    def share(self, tensors: Sequence[Tensor], what: str = "vectors") -> list[Tensor]:
        """Tensors of the process that leads, for all of them.

        Args:
            tensors: In the others, tensors of the same shapes, dtypes and devices.
            what: What they are, for the count of bytes.
        """
        by_kind: dict[Any, list[int]] = {}
        for place, tensor in enumerate(tensors):
            by_kind.setdefault((tensor.dtype, tensor.device), []).append(place)
        parts = list(tensors)
        for places in by_kind.values():
            flat = torch.cat([tensors[place].reshape(-1) for place in places])
            with self._talking():
                self._broadcast(flat)
            self._count(what, flat.numel() * flat.element_size())
            for place, part in zip(places, _split_like(flat, [tensors[place] for place in places]), strict=True):
                parts[place] = part
        return list(tensors) if self.leads else parts

    def add(self, tensors: Sequence[Tensor], what: str = "sums") -> list[Tensor]:
        """Sums over all processes of tensors that all of them have, for all of them.

        Args:
            tensors: Tensors of one device, the same number, shapes and dtypes in every process.
            what: What they are, for the count of bytes.
        """
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        with self._talking():
            if flat.is_cpu:
                self._control.allreduce([flat]).wait()
            else:
                distributed.all_reduce(flat, group=self.group)
        # a ring sends every part twice but for one's own: 2 (n − 1)/n of the whole
        self._count(what, 2 * (self.size - 1) * flat.numel() * flat.element_size() // self.size)
        return [part.to(tensor.dtype) for part, tensor in zip(_split_like(flat, tensors), tensors, strict=True)]

    def _broadcast(self, tensor: Tensor) -> None:
        """Gloo sends from the memory of the host, the group of the training from that of a GPU."""
        if tensor.is_cpu:
            self._control.broadcast([tensor]).wait()
        else:
            distributed.broadcast(tensor, self._first, self.group)

    def _send(self, message: Any, rank: int, what: str) -> None:
        content = _packed(message)
        self._control.send([torch.tensor([len(content)])], rank, 0).wait()
        self._control.send([content], rank, 0).wait()
        self._count(what, len(content))

    def _received(self, rank: int) -> Any:
        length = torch.empty(1, dtype=torch.long)
        self._control.recv([length], rank, 0).wait()
        content = torch.empty(int(length), dtype=torch.uint8)
        self._control.recv([content], rank, 0).wait()
        return _unpacked(content)

    def _count(self, what: str, size: int) -> None:
        self.wire[what] = self.wire.get(what, 0) + size

    # processes that are lost

    @property
    def is_lost(self) -> bool:
        """Whether a process has ended or left, so that nothing can be measured together any more."""
        return bool(self._lost)

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        if self._lost:
            raise LostRank(self._lost)
        try:
            yield
        except RuntimeError as error:
            self._lost = LOST.format(name=self._doing)
            self.leave()
            raise LostRank(self._lost) from error

    def leave(self) -> None:
        """Close the connections, so that no other process waits for this one."""
        self._control = None
        self._lost = self._lost or LEFT.format(name=self._doing)


def _connected(name: str, rank: int, size: int) -> Any:
    """Connections of some processes on gloo, of which the training knows nothing."""
    c10d: Any = distributed.distributed_c10d
    store = c10d.PrefixStore(f"wellcond {name}", c10d._get_default_store())
    group = c10d.ProcessGroupGloo(store, rank, size, PATIENCE)
    group._set_default_timeout(LONGEST)  # a process waits for an order as long as another measures
    return group


def _split_like(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _packed(message: Any) -> Tensor:
    buffer = io.BytesIO()
    pickle.dump(message, buffer, protocol=pickle.HIGHEST_PROTOCOL)
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def _unpacked(content: Tensor) -> Any:
    return pickle.loads(content.numpy().tobytes())
