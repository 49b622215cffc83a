"""`run_all`: tasks on a launcher, each saved as it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from wellcond.results import Progress
from wellcond.treatment.launching.launcher import Launcher
from wellcond_papers.experiments.running.store import Ended
from wellcond_papers.experiments.running.task import Task
from wellcond_papers.training.distributed import is_writer


def run_all(tasks: Sequence[Task], launcher: Launcher, progress: Progress) -> list[Ended]:
    """Run the tasks that have not finished yet, the longest first, and save each cell as it ends.

    Args:
        tasks: The tasks, in any order.
        launcher: Runs them.
        progress: Called as (what is being done, share of all work done, by the minutes of the tasks).

    Returns:
        How each task ended, in their order.
    """
    ended: dict[str, Ended] = {}
    for store in dict.fromkeys(task.store for task in tasks):
        store.prepare()
        ended |= store.finished(task.cell for task in tasks if task.store == store)
    left = sorted((t for t in tasks if t.cell.key not in ended), key=lambda t: -t.minutes)
    by_key = {task.cell.key: task for task in left}
    shares = {task.cell.key: float(task.cell.key in ended) for task in tasks}
    minutes = {task.cell.key: max(task.minutes, 1e-6) for task in tasks}

    def tell(task: Task, what: str, share: float) -> None:
        shares[task.cell.key] = share
        total = sum(minutes[key] * done for key, done in shares.items()) / sum(minutes.values())
        progress(f"{len(ended)}/{len(shares)} cells; {task.cell.experiment}: {what}", total)

    with contextlib.closing(launcher.run(list(by_key.values()), tell)) as running:
        for each in running:
            task = by_key[each.cell.key]
            if is_writer():
                task.store.put(each)
            ended[each.cell.key] = each
            tell(task, "finished" if each.record is not None else "failed", 1.0)
    return [ended[task.cell.key] for task in tasks]
