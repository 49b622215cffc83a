"""The scripts of the guide: a planted fault is found by its name, and the same script as it should be is clean."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pytest

import wellcond as wc

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "examples" / "scripts"
GUIDE = ROOT / "docs" / "guides" / "your-script.md"

PLANTED: dict[str, tuple[tuple[str, ...], str]] = {
    "dqn": (("output-loss-mismatch",), ""),
    "simclr": (("mixed-examples",), ""),
    "ddpm": (("unscaled-input",), ""),
    "graph": (("no-gradient",), "layers.0"),
    "two_tasks": (("unscaled-target",), ""),
    "segmentation": (("output-loss-mismatch",), "out"),
    "forecast": (("mixed-examples",), "gru"),
    "fine_tuning": (("no-gradient",), "8"),
    "lora": (("no-gradient",), "blocks.0.qkv"),
    "image_classifier": (("output-loss-mismatch",), "out"),
    "small_gpt": (("bad-initialisation",), "blocks.0.qkv"),
    "char_lstm": (("learning-rate-too-low",), ""),
    "hugging_face": (("learning-rate-too-high",), ""),
    "vae": (("unscaled-input",), "encoder.0"),
    "gan_discriminator": (("output-loss-mismatch",), "7"),
    "house_prices": (("unscaled-input", "unscaled-target"), "0"),
}
"""What is to be found first in each, and where."""


def test_every_script_has_a_planted_fault() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == PLANTED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANTED)
def test_the_fault_is_found_and_the_script_without_it_is_clean(name: str, request: pytest.FixtureRequest) -> None:
    if name == "hugging_face":
        request.getfixturevalue("transformers")
    module = importlib.import_module(name)
    rules, layer = PLANTED[name]
    faulty, worse = module.main(planted=True)
    healthy, better = module.main(planted=False)
    assert math.isnan(worse) or better < 0.8 * worse  # the fault is one
    assert tuple(f.rule for f in faulty.findings[: len(rules)]) == rules
    assert faulty.findings[0].layer == layer
    assert [f.rule for f in healthy.findings if f.severity != "note"] == []
    if name == "house_prices":
        assert math.isnan(worse)
        assert_is_to_be_standardized(faulty)


def assert_is_to_be_standardized(diagnosis: wc.Diagnosis) -> None:
    inputs, targets = diagnosis.findings[:2]
    assert (inputs.severity, targets.severity) == ("severe", "severe")
    assert inputs.remedy.startswith("model = wc.nn.with_standardized_inputs(model, loader)")
    assert targets.remedy.startswith("mean, std = ")
    assert re.findall(r"lr=[^,)]+", diagnosis.verdict()) == ["lr=0.05"]  # the script's own, and not 1e-12


@pytest.mark.slow
def test_the_batch_of_a_step_is_to_be_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a diffusion adds noise to must be of the noise's scale: standardized inputs of the model are no repair."""
    module = importlib.import_module("ddpm")
    diagnosis, _ = module.main(planted=True)
    names = {"training_step": module.training_step}
    exec(diagnosis.findings[0].remedy, names)
    monkeypatch.setattr(module, "training_step", names["training_step"])
    _, repaired = module.main(planted=True)
    assert repaired < 0.5


def test_the_table_of_the_guide_names_what_comes_out() -> None:
    """In the order of its sections, each of which begins with the name of its script."""
    guide = GUIDE.read_text(encoding="utf-8")
    table = re.findall(r"^\| \[([^\]]+)\]\(#([\w-]+)\) \| [^|]+ \| (.*) \|$", guide, re.M)
    sections = dict(re.findall(r"^### ([^\n]+)\n\n(\w+)\.py", guide, re.M))
    titles = {title.lower().replace(" ", "-"): script for title, script in sections.items()}
    assert [titles[anchor] for _, anchor, _ in table] == list(PLANTED)
    for _, anchor, outcome in table:
        rules, layer = PLANTED[titles[anchor]]
        assert re.findall(r"\[`([\w-]+)`\]\(\.\./rules/\1\.md\)", outcome) == list(rules)
        assert re.findall(r" at `(.*?)`", outcome) == [layer] * bool(layer)


def test_the_guide_shows_what_the_scripts_hold() -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for name in PLANTED:
        text = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
        added = [
            line.strip() for line in text.splitlines() if re.search(r"wc\.(?!digits)", line) and "def " not in line
        ]
        shown = re.search(rf"\n{name}\.py.*?```py\n(.*?)```", guide, re.DOTALL)
        assert shown is not None
        assert [line for line in shown[1].strip().splitlines() if "wc." in line] == added
        assert all(line in text for line in shown[1].strip().splitlines())
        assert len(shown[1].strip().splitlines()) <= 2  # and the import is the third
        assert all(f"`{rule}`" in guide for rule in PLANTED[name][0])
