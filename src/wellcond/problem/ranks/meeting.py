"""Where processes wait for each other before they talk: the store through which they found each other at first.

Messages wait for one that does not come, and do not know who is missing. The store knows, and its waiting ends.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from torch import distributed

from wellcond.errors import LostRank

PATIENCE: Final = timedelta(seconds=20)
"""How long processes wait for each other at the beginning of a call."""
LATE = """\
not every process called {name} within {seconds:g} s: {who}.
Every process must make the call, at the same place of the script: not inside `if rank == 0:`."""


class Meetings:
    """Meetings of some processes, one after another.

    Args:
        name: What they have in common, and no other meetings of these processes.
        ranks: The numbers of the processes in the training.
    """

    def __init__(self, name: str, ranks: list[int]) -> None:
        self._store: Any = distributed.distributed_c10d._get_default_store()
        self._name = f"wellcond {name} of {' '.join(map(str, ranks))}"
        self._ranks, self._rank = ranks, distributed.get_rank()
        self._count = 0

    def wait(self, call: str) -> None:
        """Wait until all processes are here.

        Args:
            call: What they call.

        Raises:
            LostRank: Some do not come. This process no longer waits then, and may come again.
        """
        store, key = self._store, f"{self._name} {self._count}"
        own, everyone = f"{key} {self._rank}", f"{key} all"
        store.set(own, "")
        if store.add(key, 1) == len(self._ranks):
            store.set(everyone, "")
        try:
            store.wait([everyone], PATIENCE)
        except RuntimeError as error:
            store.add(key, -1)
            missing = [str(rank) for rank in self._ranks if not store.check([f"{key} {rank}"])]
            who = f"rank {' and '.join(missing)} did not" if missing else f"the others came before rank {self._rank}"
            raise LostRank(LATE.format(name=call, seconds=PATIENCE.total_seconds(), who=who)) from error
        if self._count:
            self._forget(f"{self._name} {self._count - 1}")
        self._count += 1

    def _forget(self, key: str) -> None:
        """Delete what is left of the meeting before, which all processes have ended."""
        self._store.delete_key(f"{key} {self._rank}")
        if self._rank == self._ranks[0]:
            for each in (key, f"{key} all"):
                self._store.delete_key(each)
