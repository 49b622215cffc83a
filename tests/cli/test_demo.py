from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import pytest
from command import one_line, parsed, run

from wellcond.experiments import demo_networks
from wellcond.report.table import Pivot
from wellcond.results.quantities import LOSS, MAX_LR

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_networks, "EXAMPLES", 64)
    monkeypatch.setattr(demo_networks, "STEPS", 5)


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
    networks = demo_networks.compare(4, 16, lambda what, share: None)
    text = run("demo", "--depth", 4, "--width", 16, "--out", tmp_path / "demo.html").output
    for network in networks.values():
        pivot = Pivot.of(network.rows())
        assert f"{pivot.network[LOSS]:.4g} on 64 examples" in text
        assert f"{pivot.network[MAX_LR]:.3g} without momentum" in text


def test_a_place_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    message = one_line(run("demo", "--out", tmp_path / "no" / "demo.html"))
    assert re.fullmatch(r"the folder .* does not exist; make it first, or name another file\.", message)


def test_rows_name_the_network_before_the_layer(tmp_path: Path) -> None:
    content = parsed(run("demo", "--depth", 2, "--width", 4, "--json", "--out", tmp_path / "demo.csv"))
    layers = {row["layer"] for row in content["rows"]}
    assert layers == {"plain", "plain: fc1", "plain: fc2", "batchnorm", "batchnorm: fc1", "batchnorm: fc2"} | {
        layer for layer in layers if layer.startswith("batchnorm: bn")
    }


def test_the_report_is_opened_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    run("demo", "--depth", 2, "--width", 4, "--out", tmp_path / "a.html", "--open")
    assert opened == [(tmp_path / "a.html").as_uri()]
