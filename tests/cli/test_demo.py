from __future__ import annotations

import webbrowser
from pathlib import Path

import pytest
from command import parsed, run, words

from wellcond.experiments import demo_networks
from wellcond.report.table import Pivot
from wellcond.results.quantities import LOSS, MAX_LR

pytest.importorskip("sklearn")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_networks, "EXAMPLES", 64)
    monkeypatch.setattr(demo_networks, "STEPS", 5)


@pytest.mark.slow
def test_the_demo_prints_both_networks_with_the_numbers_of_their_rows_and_writes_one_page(tmp_path: Path) -> None:
    out = tmp_path / "demo.html"
    result = run("demo", "--depth", 4, "--width", 16, "--out", out)
    assert result.exit_code == 0, result.output
    text = words(result.output)
    assert "A 4-layer network on handwritten digits" in text
    assert "plain batchnorm" in text
    for title in ("signal, forward", "gradient, backward", "dead ReLUs", "largest stable lr", "training"):
        assert title in text
    for network in demo_networks.compare(4, 16, lambda what, share: None).values():
        numbers = Pivot.of(network.rows()).network
        assert f"{numbers[LOSS]:.4g} on 64 examples" in text
        assert f"{numbers[MAX_LR]:.3g} without momentum" in text
    assert str(out) in result.output.replace("\n", "")
    assert list(tmp_path.iterdir()) == [out]
    page = out.read_text(encoding="utf-8")
    for heading in ("Training", "Signal and gradient", "Dead and always-on", "Spectral density", "All layers"):
        assert heading in page


def test_rows_name_the_network_before_the_layer_and_the_page_is_opened_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page, picture = tmp_path / "a.html", tmp_path / "a.png"
    content = parsed(run("demo", "--depth", 2, "--width", 4, "--json", "--open", "--out", page, "--out", picture))
    assert opened == [page.as_uri()]
    assert picture.read_bytes().startswith(b"\x89PNG")
    layers = {row["layer"] for row in content["rows"]}
    assert layers == {"plain", "plain: fc1", "plain: fc2", "batchnorm", "batchnorm: fc1", "batchnorm: fc2"} | {
        layer for layer in layers if layer.startswith("batchnorm: bn")
    }
