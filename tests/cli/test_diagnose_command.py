from __future__ import annotations

from pathlib import Path

from command import run, script, words


def test_a_problem_is_diagnosed_with_the_optimizer_beside_it(tmp_path: Path) -> None:
    result = run("diagnose", f"{script(tmp_path)}:with_optimizer")
    assert result.exit_code == 0, result.output
    text = words(result.output)
    for part in ("26 parameters", "on 8 examples", "κ50 Σx", "with momentum 0.9; the optimizer is at 0.25"):
        assert part in text


def test_names_that_mean_something_to_a_terminal_or_a_browser_are_shown_as_they_are(tmp_path: Path) -> None:
    name = ":smile:[red]<b>"
    code = f"""
    def ok():
        return problem(torch.nn.Sequential(dict(zip(["{name}", "relu", "fc"], network(), strict=True))))
    """.replace("Sequential(dict", "Sequential(__import__('collections').OrderedDict")
    out = tmp_path / "report.html"
    result = run("diagnose", f"{script(tmp_path, code)}:ok", "--out", out, width=100)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{tmp_path / 'train.py'}:ok: Problem(Sequential"[:100])
    assert any(line.startswith(f" {name} ") for line in result.output.splitlines())
    page = out.read_text(encoding="utf-8")
    assert ":smile:[red]&lt;b&gt;</th>" in page
    assert name not in page
