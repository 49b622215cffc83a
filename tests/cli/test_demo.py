from __future__ import annotations

import math
import re
import webbrowser
from pathlib import Path

import pytest
from command import run

from wellcond.cli import comparison
from wellcond.report.pivot import Pivot

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "EXAMPLES", 64)
    monkeypatch.setattr(comparison, "STEPS", 5)


def test_the_demo_prints_both_networks_and_writes_one_page(tmp_path: Path) -> None:
    out = tmp_path / "demo.html"
    result = run("demo", "--depth", 4, "--width", 16, "--out", out)
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "A 4-layer network on handwritten digits" in text
    assert "plain batchnorm" in text
    for title in ("signal, forward", "gradient, backward", "dead ReLUs", "largest stable lr", "training"):
        assert title in text
    assert text.count("on 64 examples") == 2
    assert str(out) in result.output.replace("\n", "")
    assert list(tmp_path.iterdir()) == [out]
    page = out.read_text(encoding="utf-8")
    for heading in ("Training", "Signal and gradient", "Dead and always-on", "Spectral density", "All layers"):
        assert heading in page


def test_the_numbers_printed_are_those_of_the_rows(tmp_path: Path) -> None:
    networks = comparison.compare(4, 16, lambda what, share: None)
    text = run("demo", "--depth", 4, "--width", 16, "--out", tmp_path / "demo.html").output
    for network in networks.values():
        pivot = Pivot.of(network.rows())
        assert f"{pivot.network['loss']:.4g} on 64 examples" in text
        assert f"{pivot.network['max_lr']:.3g} for plain SGD" in text


def test_progress_of_the_comparison_rises_to_the_end() -> None:
    shares: list[float] = []
    comparison.compare(3, 8, lambda what, share: shares.append(share))
    assert shares == sorted(shares)
    assert 0.9 < shares[-1] <= 1


def test_a_run_that_diverges_is_never_the_best() -> None:
    model = comparison.mlp([2, 2])
    diverged = comparison._Run(model, 1.0, [2.0, math.nan], 0.5)
    steady = comparison._Run(model, 0.1, [2.0, 1.9], 0.5)
    assert min([diverged, steady], key=lambda run: run.reached) is steady


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "no" / "demo.html")
    assert result.exit_code == 1
    assert re.fullmatch(r"error: the folder .* does not exist; make it first, or name another file\.\n", result.stderr)


def test_the_report_is_opened_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run("demo", "--depth", 2, "--width", 4, "--out", tmp_path / "a.html", "--open")
    assert opened == [(tmp_path / "a.html").as_uri()]


@pytest.mark.parametrize("option", [("--depth", 1), ("--width", 0), ("--depth", "deep")])
def test_sizes_that_make_no_network_are_usage_errors(option: tuple[str, object]) -> None:
    assert run("demo", *option).exit_code == 2
