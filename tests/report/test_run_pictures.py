from __future__ import annotations

import numpy as np
import pytest
from made_runs import small_run
from subjects import drawn

from wellcond.errors import OutputError
from wellcond.recording.comparison import compare_runs
from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.results import Row
from wellcond.results import quantities as q


def test_a_run_is_drawn_with_its_findings_its_rate_and_its_layers() -> None:
    loss, rate, gradients, _updates, *_bars = small_run().figure().axes
    assert [text.get_text() for text in loss.texts] == [
        "dying-neurons at body.3",
        "learning-rate-too-high",
        "loss-spike",
        "overfitting",
    ]
    assert set(drawn(loss)) == {"training", "validation"}
    steps, values = drawn(rate)["learning rate"]
    assert (steps[-1], values[-1]) == (1200, pytest.approx(0.11))
    assert len(drawn(rate)["largest stable rate"][0]) == 13
    image = np.ma.filled(gradients.collections[0].get_array(), np.nan)
    assert image.shape == (9, 120)
    assert image[5, 60] == pytest.approx(np.log10(small_run().history.series(q.GRADIENT_NORM, "body.5").values[60]))


def test_a_run_with_nothing_but_a_loss_is_drawn() -> None:
    run = Run.of(History([Row(i, "", q.TRAINING_LOSS, 1 / i, "") for i in (1, 100)]), [], {})
    assert run.figure().axes[0].get_yscale() == "log"


def test_a_run_without_a_loss_cannot_be_drawn() -> None:
    with pytest.raises(OutputError, match="nothing to draw"):
        Run.of(History(), [], {}).figure()


def test_several_runs_are_drawn_in_one_picture() -> None:
    (axes,) = compare_runs({"a": small_run(), "b": small_run()}).figure().axes
    assert set(drawn(axes)) == {"a", "b"}
