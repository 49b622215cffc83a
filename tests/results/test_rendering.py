"""How results find what draws and words them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from wellcond.errors import OutputError
from wellcond.results import Result, Row, rendering
from wellcond.results.rendering import is_rendered, rendered, renders


@dataclass(frozen=True)
class Answer(Result):
    value: float

    def rows(self, step: int | None = None) -> list[Row]:
        return [Row(step, "", "answer", self.value, "")]


class SubAnswer(Answer):
    pass


@pytest.fixture
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "_RENDERERS", {})
    monkeypatch.setattr(rendering, "renderers_module", "")


@pytest.mark.usefixtures("_registry")
def test_a_form_is_that_of_the_nearest_registered_class() -> None:
    renders("text", Answer)(lambda answer: f"answer {answer.value:g}")
    assert str(SubAnswer(42.0)) == "answer 42"
    renders("text", SubAnswer)(lambda answer, sign="": f"{sign}{answer.value:g}")
    assert (str(SubAnswer(42.0)), str(Answer(42.0))) == ("42", "answer 42")
    assert rendered("text", SubAnswer(42.0), sign="+") == "+42"


@pytest.mark.usefixtures("_registry")
def test_without_renderers_a_result_has_its_repr() -> None:
    answer = Answer(42.0)
    assert str(answer) == repr(answer) == "Answer(value=42.0)"
    assert not is_rendered("figure", Answer)
    for form in (answer.figure, answer._repr_html_):
        with pytest.raises(OutputError, match=r"a Answer has no (figure|fragment); save it as \.csv or \.json\."):
            form()


def test_a_result_of_ones_own_has_a_plain_page(tmp_path: Path) -> None:
    text = Answer(42.0).save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "<pre>Answer(value=42.0)</pre>" in text
