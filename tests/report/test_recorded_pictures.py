from __future__ import annotations

import pytest
from made_runs import small_run
from subjects import drawn

from wellcond.errors import OutputError
from wellcond.recording.comparison import compare_runs
from wellcond.recording.history import History
from wellcond.recording.run import Run
from wellcond.report.figures.recorded import comparison_figure, recorded_figure
from wellcond.results import Row
from wellcond.results import quantities as q


def test_a_run_is_drawn_with_its_findings_and_its_rate() -> None:
    above, loss, rate = recorded_figure(small_run()).axes
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in above.patches]
    assert bars == [(400, 1200), (1000, 1200), (1100, 1200), (695, 720)]
    assert above.texts[0].get_text() == "dying-neurons at body.3, since step 400"
    assert set(drawn(loss)) == {"training", "validation"}
    assert max(drawn(loss)["training"][1]) == pytest.approx(small_run().history.series(q.TRAINING_LOSS).values[699])
    steps, values = drawn(rate)["learning rate"]
    assert (steps[-1], values[-1]) == (1200, pytest.approx(0.11))
    assert len(drawn(rate)["largest stable rate"][0]) == 13


def test_a_run_with_nothing_but_a_loss_is_drawn() -> None:
    run = Run.of(History([Row(i, "", q.TRAINING_LOSS, 1 / i, "") for i in (1, 100)]), [], {})
    above, loss, _rate = recorded_figure(run).axes
    assert above.texts[0].get_text() == "nothing was found"
    assert loss.get_yscale() == "log"


def test_a_run_without_a_loss_cannot_be_drawn() -> None:
    with pytest.raises(OutputError, match="no loss was recorded"):
        recorded_figure(Run.of(History(), [], {}))


def test_several_runs_are_drawn_in_one_picture() -> None:
    (axes,) = comparison_figure(compare_runs({"a": small_run(), "b": small_run()})).axes
    assert set(drawn(axes)) == {"a", "b"}
