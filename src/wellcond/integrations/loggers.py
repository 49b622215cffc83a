"""Numbers and findings of a recorded run in the logger that is already there: TensorBoard, W&B, trackio, MLflow, JSONL.

```
wc.Recorder(model, optimizer, loss, log=log_to(SummaryWriter()))
```
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from wellcond.diagnosis.finding import SEVERITIES, Finding
from wellcond.integrations.writers import Writer, writer_for
from wellcond.recording.listener import Listener
from wellcond.results import Row
from wellcond.results import quantities as q

if TYPE_CHECKING:
    from wellcond.recording.recorder import Recorder

OF_THE_NETWORK = (
    q.TRAINING_LOSS,
    q.VALIDATION_LOSS,
    q.LR,
    q.MAX_LR,
    q.GRADIENT_NORM,
    q.UNCLIPPED_GRADIENT_NORM,
    q.GRADIENT_NOISE_SCALE,
    q.LOSS_SCALE,
    q.RECORDING_SHARE,
)
OF_THE_WORST_LAYER = (q.UPDATE_RATIO, q.DEAD_SHARE, q.SATURATED_SHARE, q.STATISTICS_GAP)
"""Of these the largest of all layers is logged."""
MOST_POINTS = 50
"""Points of a series at a time. Loggers take up to a millisecond for each, and draw no more of them."""


def log_to(*loggers: Any, layers: str | Collection[str] = ()) -> Listener:
    """What a `Recorder` writes down, also in other loggers: a dozen series, and findings as text or alerts.

    Args:
        *loggers: Each a `SummaryWriter`, a run of W&B, trackio or MLflow, one of these modules itself, a logger of
            Lightning's, or the path of a JSONL file.
        layers: Names of layers, or patterns such as `"encoder.*"`, of which all that is recorded is logged too.

    Returns:
        What to pass as `log=` to a `Recorder`.

    Raises:
        TypeError: Something is no logger.

    Example:
        >>> import tempfile, torch
        >>> from wellcond import Recorder
        >>> model, path = torch.nn.Linear(1, 1), tempfile.mkdtemp() + "/log.jsonl"
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Recorder(model, optimizer, log=log_to(path)) as rec:
        ...     model(torch.ones(1, 1)).sum().backward()
        ...     optimizer.step()
        ...     rec.step(0.5)
        >>> '"wellcond/training_loss": 0.5' in open(path).read()
        True
    """
    return RunLogger([writer_for(each) for each in loggers], [layers] if isinstance(layers, str) else layers)


def latest(recorder: Recorder) -> dict[str, float]:
    """The newest number of each series that `log_to` writes, and how many findings of each severity there are now.

    For a trainer that wants one report of metrics: `ray.train.report({"loss": value, **latest(rec)})`, or
    `accelerator.log(latest(rec))`.

    Args:
        recorder: A recorder, in its loop or after it.

    Returns:
        Numbers by name; a series that has not begun is missing.

    Example:
        >>> import torch
        >>> from wellcond import Recorder
        >>> model = torch.nn.Linear(1, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with Recorder(model, optimizer) as rec:
        ...     for value in (0.5, 0.25):
        ...         model(torch.ones(1, 1)).sum().backward()
        ...         optimizer.step()
        ...         rec.step(value)
        >>> latest(rec)["wellcond/training_loss"], latest(rec)["wellcond/severe"]
        (0.25, 0)
    """
    history = recorder.history
    numbers: dict[str, float] = {}
    for quantity in OF_THE_NETWORK:
        series = history.series(quantity)
        if len(series):
            numbers[f"wellcond/{quantity}"] = float(series.values[-1])
    for quantity in OF_THE_WORST_LAYER:
        values = [float(history.series(quantity, layer).values[-1]) for layer in history.layers(quantity)]
        if values:
            numbers[f"wellcond/worst_{quantity}"] = max(values, key=_by_badness)
    present = [finding.severity for finding in recorder.findings if finding.until is None]
    return numbers | {f"wellcond/{severity}": present.count(severity) for severity in SEVERITIES}


class RunLogger(Listener):
    """Chooses what of a run is logged.

    Args:
        writers: Where to.
        layers: Names or patterns of layers that are logged too.
    """

    def __init__(self, writers: Sequence[Writer], layers: Collection[str]) -> None:
        self._writers, self._layers = writers, layers

    def rows(self, rows: Sequence[Row]) -> None:
        series: dict[str, dict[int, float]] = defaultdict(dict)
        for row in rows:
            step = row.step or 0
            if not row.layer and row.quantity in OF_THE_NETWORK:
                series[f"wellcond/{row.quantity}"][step] = row.value
            if row.layer and row.quantity in OF_THE_WORST_LAYER:
                worst = series[f"wellcond/worst_{row.quantity}"]
                worst[step] = max(worst.get(step, -math.inf), row.value, key=_by_badness)
            if row.layer and self._is_chosen(row.layer):
                series[f"wellcond/{row.layer}/{row.quantity}"][step] = row.value
        by_step: dict[int, dict[str, float]] = defaultdict(dict)
        for name, points in series.items():
            for step, value in thinned(points).items():
                by_step[step][name] = value
        for writer in self._writers if by_step else ():
            writer.write({step: by_step[step] for step in sorted(by_step)})

    def finding(self, finding: Finding) -> None:
        for writer in self._writers:
            writer.tell(finding)

    def _is_chosen(self, layer: str) -> bool:
        return any(fnmatchcase(layer, each) or layer.startswith(f"{each}.") for each in self._layers)


def thinned(points: dict[int, float], most: int = MOST_POINTS) -> dict[int, float]:
    """Every n-th point of a series up to its last one, with the largest, so that a spike is not lost.

    Example:
        >>> thinned({step: 9.0 if step == 4 else 1.0 for step in range(1, 9)}, 2)
        {4: 9.0, 8: 1.0}
    """
    steps = sorted(points)
    every = math.ceil(len(steps) / most)
    largest = max(steps, key=lambda step: _by_badness(points[step]))
    return {step: points[step] for step in sorted({*steps[::-1][::every], largest})}


def _by_badness(value: float) -> float:
    """Nothing is worse than NaN."""
    return math.inf if math.isnan(value) else value
