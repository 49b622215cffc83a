"""A run that is killed goes on as if nothing had happened; damaged files are found, those of other runs refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_run import CASES, DATA, STEPS, network, run

from wellcond.errors import Unsupported
from wellcond_papers.data.batches import Batches
from wellcond_papers.training.checkpoint import Checkpoint
from wellcond_papers.training.classifier import train_classifier
from wellcond_papers.training.history import History

SCRIPT = Path(__file__).parent / "killed_run.py"


@pytest.mark.slow
def test_a_run_killed_in_each_case_ends_in_the_same_numbers_bit_for_bit(tmp_path: Path) -> None:
    steps = dict(zip(CASES, (17, 31, 45), strict=True))
    with subprocess.Popen([sys.executable, SCRIPT, tmp_path, *CASES], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            process, step, case = line.strip().split(" ", 2)
            if int(step) == steps[case]:
                os.kill(int(process), signal.SIGKILL)
    for case, step in steps.items():
        taken: list[int] = []
        resumed = run(case, tmp_path, progress=lambda what, share, taken=taken: taken.append(round(share * STEPS)))
        assert taken[0] in (7 * (step // 7) + 1, 7 * ((step + 1) // 7) + 1)  # not the first, and not all are done
        assert resumed == run(case, None), case
        assert len(resumed["losses"]) == STEPS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop", [7, 13])
def test_a_run_goes_on_from_its_last_checkpoint(stop: int, case: str, tmp_path: Path) -> None:
    def interrupt(what: str, share: float) -> None:
        if round(share * 20) == stop + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(case, tmp_path, 20, progress=interrupt)
    taken: list[float] = []
    again = run(case, tmp_path, 20, progress=lambda what, share: taken.append(round(share * 20)))
    assert taken == list(range(7 * (stop // 7) + 1, 21))
    assert again == run(case, None, 20)


def test_a_finished_run_takes_no_further_step_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    taken: list[float] = []
    first = run("Adam", tmp_path, 20)
    assert run("Adam", tmp_path, 20, progress=lambda *report: taken.append(1)) == first
    assert taken == []
    assert run("Adam", tmp_path, 30) == run("Adam", None, 30)


def test_a_diverged_run_is_not_tried_again(tmp_path: Path) -> None:
    class Nowhere(torch.nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Nowhere.calls += 1
            return super().forward(x) * (torch.nan if Nowhere.calls == 4 else 1.0)

    from wellcond_papers.training.classifier import train_classifier

    def trained() -> Any:
        model = Nowhere(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        checkpoint = Checkpoint(tmp_path / "a.pt", {"model": model, "optimizer": optimizer}, every=100)
        batch = torch.ones(3, 2), torch.zeros(3, dtype=torch.int64)
        return train_classifier(model, optimizer, lambda step: batch, 9, at=[], checkpoint=checkpoint)

    first = trained()
    assert (first.diverged_at, len(first.losses)) == (4, 3)
    assert trained() == first
    assert Nowhere.calls == 4


# damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:500] + bytes([content[500] ^ 1]) + content[501:],
        lambda content: b"not a checkpoint at all",
    ],
    ids=["cut in half", "empty", "one bit", "something else"],
)
def test_a_damaged_checkpoint_is_named_and_the_run_begins_again(damage: Any, tmp_path: Path) -> None:
    whole = run("Adam", tmp_path, 20)
    path = tmp_path / "Adam.pt"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="Adam.pt is damaged"):
        again = run("Adam", tmp_path, 20)
    assert again == whole
    assert run("Adam", tmp_path, 20) == whole  # and the file is whole again


def test_a_write_that_fails_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("Adam", tmp_path, 20)
    before = (tmp_path / "Adam.pt").read_bytes()
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        run("Adam", tmp_path, 30)
    assert (tmp_path / "Adam.pt").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "Adam.pt"]


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    model = network()
    checkpoint = Checkpoint(tmp_path / "evil.pt", {"model": model})
    monkey = Checkpoint(checkpoint.path, {"model": type("Part", (), {"state_dict": lambda self: Evil()})()})
    monkey.save(History(), {})
    with pytest.warns(UserWarning, match="evil.pt is damaged"):
        assert checkpoint.load({}) is None
    assert not (tmp_path / "ran").exists()


# other runs


def saved(path: Path, **parts: Any) -> Checkpoint:
    checkpoint = Checkpoint(path, parts)
    checkpoint.save(History([1.0]), {"optimizer": "SGD"})
    return checkpoint


def test_a_checkpoint_of_other_parts_is_refused(tmp_path: Path) -> None:
    model = network()
    saved(tmp_path / "a.pt", model=model)
    other = Checkpoint(tmp_path / "a.pt", {"model": model, "bnp": model})
    with pytest.raises(
        Unsupported, match=r"(?s)a\.pt belongs to another run: it has the parts model, and not model, b"
    ):
        other.load({})


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a.pt", model=network())
    with pytest.raises(Unsupported, match="its model does not fit"):
        Checkpoint(tmp_path / "a.pt", {"model": torch.nn.Linear(2, 2)}).load({"optimizer": "SGD"})


def test_a_checkpoint_of_another_optimizer_or_rate_is_refused(tmp_path: Path) -> None:
    run("Adam", tmp_path, 20)
    (tmp_path / "Adam.pt").rename(tmp_path / "scale-amended.pt")
    with pytest.raises(Unsupported, match=r"(?s)its optimizer is Adam .*'lr': 0.01.*and not ScaleAmendedSGD"):
        run("scale-amended", tmp_path, 20)


def test_a_checkpoint_of_a_longer_run_is_refused(tmp_path: Path) -> None:
    run("Adam", tmp_path, 20)
    with pytest.raises(Unsupported, match="it has taken 20 steps, and not 10 at most"):
        run("Adam", tmp_path, 10)


def test_all_generators_are_where_they_were(tmp_path: Path) -> None:
    import random

    import numpy as np

    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    checkpoint = saved(tmp_path / "a.pt", model=network())
    expected = drawn()
    assert drawn() != expected
    assert checkpoint.load({"optimizer": "SGD"}) == History([1.0])
    assert drawn() == expected


def test_a_checkpoint_does_not_go_on_with_other_batches(tmp_path: Path) -> None:
    def trained(size: int, seed: int) -> None:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        checkpoint = Checkpoint(str(tmp_path / "state.pt"), {"model": model, "optimizer": optimizer})
        train_classifier(model, optimizer, Batches(DATA, size, seed=seed), 2, at=(), checkpoint=checkpoint)

    trained(8, 0)
    for size, seed in ((16, 0), (8, 1)):
        with pytest.raises(Unsupported, match="its batches is Batches"):
            trained(size, seed)


@pytest.mark.parametrize(("seconds", "saved_at"), [(-1.0, [1, 2, 3, 4]), (3600.0, [4])])
def test_without_a_number_of_steps_the_clock_says_when_to_save(
    seconds: float, saved_at: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = []
    monkeypatch.setattr("wellcond_papers.training.loop.SECONDS", seconds)
    monkeypatch.setattr(Checkpoint, "save", lambda self, history, settings: lengths.append(len(history.losses)))
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpoint = Checkpoint(tmp_path / "state.pt", {"model": model, "optimizer": optimizer})
    train_classifier(model, optimizer, Batches(DATA, 8, seed=0), 4, at=(), checkpoint=checkpoint)
    assert lengths == saved_at


def test_a_checkpoint_every_no_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every must be at least 1"):
        Checkpoint(tmp_path / "state.pt", {}, every=0)
