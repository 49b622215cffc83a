"""The page of a diagnosis as text: complete, in order, and with every name escaped."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from documents import Document
from made_findings import AWKWARD_NAME
from subjects import AWKWARD, SOUND, density, layer, losses

from wellcond.report.html.page import page, treatment_page
from wellcond.results import Cost


def test_the_page_is_whole_and_loads_nothing() -> None:
    text = page({"a": AWKWARD, "b": SOUND})
    document = Document(text)
    assert all(not attributes.get("src") for tag, attributes in document.tags)
    assert all(tag not in ("link", "iframe", "img", "object") for tag, _ in document.tags)
    styles = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert styles is not None
    assert "url(" not in styles[1]
    assert "@import" not in styles[1]
    assert len(document.scripts) == 2  # what is drawn, and what draws it


def test_a_page_is_small() -> None:
    assert len(page({"a": AWKWARD, "b": SOUND}).encode()) < 50_000
    many = replace(SOUND, measured_rows=[row for i in range(60) for row in layer(f"block.{i}.fc")])
    assert len(page({"a": many}).encode()) < 100_000


def test_the_verdict_comes_first_then_findings_the_tree_and_the_numbers() -> None:
    words = Document(page({"net": AWKWARD})).words
    order = ["Diagnosis of net", "Verdict: 3 <found>.", "What was found", "vanishing-gradient", "Why Each ReLU halves"]
    order += [
        "The model",
        "Numbers",
        "2.3 on 64 examples",
        "Layer by layer",
        "second moment of what a layer receives",
        "Condition numbers of",
        "How it was measured",
    ]
    places = [words.index(text) for text in order]
    assert places == sorted(places)
    assert f"κ50 of Σx up to ∞, at {AWKWARD_NAME}" in words


def test_a_sound_network_reads_as_sound() -> None:
    document = Document(page({"net": SOUND}))
    classes = [str(attributes.get("class")) for _, attributes in document.tags]
    assert "verdict sound" in classes
    assert not any("severe" in each or "warning" in each for each in classes)
    assert "What was found" not in document.words


def test_every_finding_has_a_place_that_the_tree_and_the_verdict_link_to() -> None:
    document = Document(page({"a": AWKWARD, "b": AWKWARD}))
    identities = [attributes["id"] for _, attributes in document.tags if attributes.get("id")]
    assert len(identities) == len(set(identities))
    links = {str(attributes["href"]).removeprefix("#") for tag, attributes in document.tags if tag == "a"}
    assert {each for each in identities if str(each).startswith("finding-")} == links


def test_what_is_for_experts_is_folded() -> None:
    text = page({"net": AWKWARD})
    begin = text.index('<details class="expert">')
    folded = text[begin : text.index("<h2>How it was measured", begin)]
    assert " open" not in folded[: folded.index(">")]
    for words in ("Condition numbers of", "All layers", "Not covered", "second moment"):
        assert words in folded
        assert words not in text.replace(folded, "")


def test_a_finding_shows_wrong_and_right_code_of_its_rule_folded() -> None:
    text = page({"net": AWKWARD})
    about = re.search(r'<details class="about"><summary>About vanishing-gradient.*?</details>', text, re.DOTALL)
    assert about is not None
    for words in ("# wrong", "nn.Sigmoid()", "# right", "wellcond diagnose --explain vanishing-gradient"):
        assert words in about[0]
    own = replace(AWKWARD, findings=(replace(AWKWARD.findings[0], rule="my-rule"),))
    assert "About my-rule" not in page({"net": own})


def run(*losses: float) -> SimpleNamespace:
    """A training run of these losses, whose curve they are."""
    return SimpleNamespace(losses=list(losses), curve=lambda: (list(range(1, len(losses) + 1)), list(losses)))


def treated() -> SimpleNamespace:
    untreated = SimpleNamespace(name="untreated", best_lr=None, runs={0.1: {0: run(2.0, 1.9, 9.0), 1: run(2.0, 1.7)}})
    best = SimpleNamespace(name="<he>", best_lr=0.3, runs={0.3: {0: run(2.0, 0.3)}, 1.0: {0: run(2.0)}})
    other = SimpleNamespace(name="screened", best_lr=None, runs={})
    return SimpleNamespace(
        title="Loss after 2 steps",
        code="x < 1",
        notes=("<few> seeds",),
        arms={arm.name: arm for arm in (untreated, best, other)},
        untreated=untreated,
        best=best,
        verdict=lambda: "he helps.",
        table=lambda: (["arm", "loss"], [["<he>", "0.3"]]),
        prices=lambda: (["arm", "memory"], [["<he>", "3 MiB"]]),
    )


def test_what_remedies_did_is_shown_with_curves_and_code() -> None:
    for text in (treatment_page(treated()), page({"a": SOUND}, treatment=treated())):
        document = Document(text)
        assert "What helps ✓ he helps. copy x < 1" in document.words
        assert "arm loss <he> 0.3" in document.words
        assert "arm memory <he> 3 MiB <few> seeds" in document.words
        drawn = {trace["name"]: trace["y"] for figure in document.figures.values() for trace in figure["data"]}
        assert drawn["untreated, lr 0.1"] == [2.0, pytest.approx(1.8)]  # the mean, as far as both seeds go
        assert drawn["<he>, lr 0.3"] == [2.0, 0.3]
        assert "<he>" not in text


def test_short_runs_are_curves_with_gaps_where_the_loss_is_not_finite() -> None:
    own = SimpleNamespace(lr=0.5, run=run(1.0, math.nan, math.inf))
    lower = SimpleNamespace(lr=0.05, run=run(1.0, 0.5))
    trial = SimpleNamespace(own=own, others=(lower,), variants={"no dropout": lower}, few=None)
    figures = Document(page({"a": replace(SOUND, trial=trial)})).figures
    drawn = {trace["name"]: trace["y"] for figure in figures.values() for trace in figure["data"]}
    assert drawn["as it is, lr 0.5"] == [1.0, None, None]
    assert drawn["lr 0.05"] == drawn["no dropout"] == [1.0, 0.5]


def test_names_of_layers_and_networks_are_escaped() -> None:
    ends_script = "</script><script>alert(1)</script>"
    renamed = [row._replace(layer=ends_script) if row.layer == "fc1" else row for row in AWKWARD.rows()]
    text = page({"<script>alert(1)</script>": replace(AWKWARD, measured_rows=renamed)})
    assert "<b>" not in text
    assert "<script>alert(1)" not in text
    document = Document(text)
    assert len(document.scripts) == 2
    assert "<script>alert(1)</script>" in document.words
    labels = {label for figure in document.figures.values() for trace in figure["data"] for label in trace.get("x", [])}
    assert {ends_script, AWKWARD_NAME} <= labels  # as they are: plot.js sets them as text


def test_the_table_has_every_layer_and_column_and_infinity_in_words() -> None:
    document = Document(page({"a": AWKWARD, "b": SOUND}))
    rows = [attributes for tag, attributes in document.tags if tag == "th" and attributes.get("data-value") is not None]
    assert len(rows) == 4
    for title in ("κ20 Σx", "κ100 Σ∇h", "rank Σx", "dead", "‖θ‖", "∞"):
        assert title in document.words
    assert "Infinity" in [attributes["data-value"] for _, attributes in document.tags if "data-value" in attributes]


def test_missing_parts_are_listed_by_network_and_shared_facts_once() -> None:
    failed = {"Hessian trace": "it is NaN", "Hessian eigenvalues": "it is NaN"}
    other = replace(SOUND, failed=failed, about={"model": "Other", "batchnorm": "the model has none"})
    words = Document(page({"a": AWKWARD, "b": other})).words
    assert "a: bn1 has no Σx" in words
    assert "b: Hessian trace, Hessian eigenvalues it is NaN" in words
    assert words.count("the model has none") == 1
    assert "a: Net; b: Other" in words


def test_left_out_parts_and_costs_are_listed_for_each_network() -> None:
    part = SimpleNamespace(name="gradients <b>", estimate=2.0, cost=Cost(3, 3), seconds=0.5)
    skipped = SimpleNamespace(name="Hessian trace", estimate=0.0, cost=Cost(), seconds=0.0)
    priced = replace(SOUND, left_out={"Hessian trace": 'budget="full" measures it'}, parts=(part, skipped))
    words = Document(page({"a": priced})).words
    assert 'Left out Hessian trace budget="full" measures it' in words
    assert "gradients <b> 2 3 0.5 s" in words
    assert "a: Hessian trace" in Document(page({"a": priced, "b": SOUND})).words
    assert "What it took" not in Document(page({"b": SOUND})).words


@pytest.mark.parametrize(("count", "is_tall"), [(40, False), (41, True)])
def test_a_table_of_many_layers_has_every_row_and_scrolls(count: int, is_tall: bool) -> None:
    many = replace(SOUND, measured_rows=[row for i in range(count) for row in layer(f"fc{i}")])
    document = Document(page({"a": many}))
    assert sum(attributes.get("data-value") is not None for tag, attributes in document.tags if tag == "th") == count
    assert ("scroll tall" in [attributes.get("class") for _, attributes in document.tags]) == is_tall


def test_density_and_training_are_drawn_if_passed() -> None:
    assert "Spectral density" not in Document(page({"a": AWKWARD})).words
    document = Document(page({"a": AWKWARD}, rows={"a": losses(2.0, 1.0, 0.5)}, densities={"a": density(1.0, 0.5)}))
    assert "Spectral density of the Hessian" in document.words
    curves = [t for f in document.figures.values() for t in f["data"] if t["x"] == [1, 2, 3]]
    assert [trace["y"] for trace in curves] == [[2.0, 1.0, 0.5]]


def test_a_subject_without_layers_still_makes_a_page() -> None:
    empty = replace(AWKWARD, measured_rows=[], failed={"conditioning": "it is NaN"})
    assert "Could not be measured" in Document(page({"a": empty})).words
