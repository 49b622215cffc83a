"""The code in the README and on the site runs as it stands, and the reference has an entry for every public name."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import pkgutil
import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import notebooks
import pages
import pytest
import reference
import rooms
import rule_record
import rules
import torch
import typer
from torch import nn

import wellcond
from wellcond.cli.app import app
from wellcond.diagnosis.evidence import Evidence
from wellcond.diagnosis.rule import RULES
from wellcond.remedies import REMEDIES, Setup
from wellcond.results import Result
from wellcond_papers.experiments import catalog as catalog

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if "scripts" not in path.parts)]
GENERATED = {"README.md", "docs/index.md", "docs/tour.md", "docs/architecture.md"}
"""Pages with what their code prints and calls, which `make pages` writes."""
WITH_CODE = [page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")]


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_front_page_has_the_code_of_the_readme() -> None:
    assert _blocks(DOCS / "index.md") == _blocks(ROOT / "README.md")


OF_LIBRARIES = ("trainers", "lightning", "transformers", "accelerate", "peft", "ray-train", "loggers")
"""Guides whose code runs in tests/integrations, where its library is there."""
RUN_ELSEWHERE = {"docs/architecture.md", "docs/index.md", *(f"docs/guides/{name}.md" for name in OF_LIBRARIES)}


@pytest.fixture
def own_registries() -> Iterator[None]:
    """Rules and remedies that a page adds are gone after it."""
    before = [(registry, dict(registry)) for registry in (RULES, REMEDIES)]
    yield
    for registry, entries in before:
        registry.clear()
        registry.update(entries)


@pytest.mark.usefixtures("own_registries")
@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in WITH_CODE if _name(page) not in RUN_ELSEWHERE], ids=_name)
def test_the_code_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("wellcond.treatment.conditions.LONGER", 2)  # ten times longer runs show no more of the code
    namespace: dict[str, object] = {"__name__": "page"}
    for block in _blocks(page):
        exec(compile(block, page.name, "exec"), namespace)


@pytest.mark.slow
def test_the_map_and_the_files_of_rooms_are_those_of_the_sources() -> None:
    """`make pages` renews them."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    assert pages.with_rooms(page) == page
    assert len(pages.ROOMS.findall(page)) == 4


@pytest.mark.slow
def test_the_walks_are_those_of_the_calls() -> None:
    """`make pages` renews them."""
    path = DOCS / "architecture.md"
    page = path.read_text(encoding="utf-8")
    assert page.count("stays, ") == page.count("<!-- walk -->") == 7
    assert pages.filled(path) == page


def test_outputs_are_on_the_pages() -> None:
    """Their numbers may differ by machine, so only their presence is checked; other tests run the code."""
    assert {_name(path) for path in pages.PAGES} == GENERATED
    for path in pages.PAGES[:3]:
        page = path.read_text(encoding="utf-8")
        outputs = re.findall(r"^<!-- output(?:: \d+ lines)? -->\n(.*?)^<!-- end of output -->$", page, re.M | re.S)
        assert len(outputs) == page.count("<!-- output") > 0
        for output in outputs:
            assert re.fullmatch(r"\n```text\n.+\n```\n\n", output, re.S), output


def test_titles_in_the_navigation_are_those_of_the_pages() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    titles = {DOCS / path: title for title, path in re.findall(r"- ([^:\n]+): ([\w/-]+\.md)", navigation)}
    del titles[DOCS / "index.md"]  # "Home"
    written = {path: title for path, title in titles.items() if path.exists()}
    assert len(written) > 15
    for path, title in written.items():
        heading = re.search(r"^# (.*)$", path.read_text(encoding="utf-8"), re.M)
        assert heading is not None, path.name
        assert heading[1].partition(": ")[0] == title, path.name  # papers have their titles after a colon


def test_the_rule_and_the_remedy_of_the_contributors_page_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wellcond.diagnosis.rule.RULES", rules := {})
    monkeypatch.setattr("wellcond.remedies.remedy.REMEDIES", remedies := {})
    rule, remedy, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.DOTALL)
    exec(compile(rule, "rule", "exec"), {"__name__": "rule"})
    exec(compile(remedy, "remedy", "exec"), {"__name__": "remedy"})
    (name,), (judge,) = rules, rules["strong-label-smoothing"]
    problems = [
        wellcond.Problem(
            nn.Linear(4, 3), nn.CrossEntropyLoss(label_smoothing=smoothing), (torch.randn(8, 4), torch.arange(8) % 3)
        )
        for smoothing in (0.9, 0.1)
    ]
    faulty, healthy = (list(judge.judge(Evidence(problem))) for problem in problems)
    assert [finding.severity for finding in faulty] == ["severe"]
    assert healthy == []
    assert {faulty[0].treatment} == remedies.keys()
    assert remedies[faulty[0].treatment].rules == (name,)
    treated = remedies[faulty[0].treatment].apply(Setup.of(problems[0]))
    assert treated.problem.loss.label_smoothing == 0.1
    assert remedies[faulty[0].treatment].apply(Setup.of(problems[1])) is None


def test_readme_tour_and_guides_have_code_that_runs() -> None:
    assert {ROOT / "README.md", DOCS / "index.md", DOCS / "tour.md", *(DOCS / "guides").glob("*.md")} <= set(WITH_CODE)


@cache
def _built_pages() -> dict[Path, str]:
    """The pages that are written when the site is built."""
    built = {DOCS / entry.path: entry.markdown() for entry in reference.pages()}
    built |= {DOCS / "reference" / "index.md": reference.index(), DOCS / "rules.md": rules.index()}
    built |= {DOCS / "rules" / f"{name}.md": rules.page(name) for name in rules.names()}
    built[DOCS / "notebooks" / "index.md"] = notebooks.index()
    built |= {DOCS / "notebooks" / f"{path.stem}.md": notebooks.page(path) for path in notebooks.PATHS}
    for name in ("CHANGELOG", "CONTRIBUTING"):
        built[DOCS / f"{name.lower()}.md"] = (ROOT / f"{name}.md").read_text(encoding="utf-8")
    return built


def _anchors(markdown: str) -> set[str]:
    """What a link may point to on a page: its headings as the site names them, and `<a id=…>`."""
    text = re.sub(r"^```.*?^```$", "", markdown, flags=re.M | re.S)
    headings = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in re.findall(r"^#+ (.*)$", text, re.M)]
    ascii_only = [unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode() for heading in headings]
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in ascii_only}
    return slugs | set(re.findall(r'<a id="([^"]+)"', text))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_and_pictures_exist(page: Path) -> None:
    built = _built_pages()
    broken = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = (page.parent / target).resolve() if target else page
        if path not in built and not path.exists():
            broken.append(target)
        elif anchor and path.suffix == ".md" and "reference" not in path.parts:
            text = built[path] if path in built else path.read_text(encoding="utf-8")
            broken += [f"{target}#{anchor}"] if anchor not in _anchors(text) else []
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for module in re.findall(r"python -m ((?:wellcond|benchmarks)[\w.]*)", text):
        assert importlib.util.find_spec(module) is not None, module
    for path in re.findall(r"\b(?:examples|tests|src)/[\w/]+(?:\.\w+)?", text):
        assert (ROOT / path).exists(), path
    commands = typer.main.get_group(app).commands
    for command in re.findall(r"wellcond ([a-z-]+) (?:\S+\.py:|--)", text):
        assert command in commands, command


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_experiments_and_options_in_commands_exist(page: Path) -> None:
    commands = typer.main.get_group(app).commands
    known = {*catalog.names(), *catalog.sources(), catalog.ALL}
    for command, arguments in re.findall(r"wellcond (reproduce|sweep) ([^`\n#]+)", page.read_text(encoding="utf-8")):
        options = {option for parameter in commands[command].params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", arguments)) <= options, arguments
        assert set(re.findall(r"\b[a-z]+20\d\d(?:-\w+)*", arguments)) <= known, arguments


def test_what_the_theory_page_says_computes_a_statement_exists() -> None:
    statements = (DOCS / "theory.md").read_text(encoding="utf-8").partition("\n## Tests\n")[0]
    cells = [line.rpartition(" | ")[2] for line in statements.splitlines() if line.startswith("| ")]
    names = {name for cell in cells for name in re.findall(r"`((?:wc|wellcond|lange2022)\.[\w.]*\w)", cell)}
    assert len(names) > 20
    for name in names:
        pkgutil.resolve_name(
            re.sub(r"^wc\.", "wellcond.", name).replace("lange2022.", "wellcond_papers.papers.lange2022.")
        )


def test_examples_on_the_pages_of_rules_are_lines_that_repaired_a_fault() -> None:
    examples = [text for name in rules.names() if (text := rule_record.example(name))]
    assert len(examples) > 15
    for text in examples:
        before, after = map(float, re.findall(r"from (-?\d+\.\d\d) to (-?\d+\.\d\d)", text)[0])
        assert after > before
        ast.parse(re.findall(r"```py\n(.*?)```", text, re.DOTALL)[0])


@pytest.mark.slow
def test_every_public_name_of_both_packages_has_one_entry() -> None:
    entries = [name for page in reference.pages() for name in page.names]
    assert len(entries) == len(set(entries))
    public = {f"wellcond.{name}" for name in wellcond.__all__ if not inspect.ismodule(getattr(wellcond, name))}
    for path, module in reference.public_modules().items():
        own = [name for name in getattr(module, "__all__", ()) if name not in wellcond.__all__]
        public |= {f"{path}.{name}" for name in own if not inspect.ismodule(getattr(module, name))}
    expected = {"wellcond.meanfield.predict", "wellcond.remedies.Setup", "wellcond_papers.data.load"}
    assert expected <= public <= set(entries)


def test_every_error_has_an_entry_in_the_reference() -> None:
    entries = {name.rpartition(".")[2] for page in reference.pages() for name in (*page.names, *page.results)}
    classes = {
        name for name, cls in vars(wellcond.errors).items() if inspect.isclass(cls) and issubclass(cls, BaseException)
    }
    assert "Unsupported" in classes
    assert classes <= entries


def test_every_result_has_an_entry_in_the_reference() -> None:
    entries = {reference.identifier(name) for page in reference.pages() for name in (*page.names, *page.results)}
    entries = {name.rpartition(".")[2] for name in entries}
    results = [Result]
    for result in results:
        results += result.__subclasses__()
    public = {
        cls.__name__
        for cls in results
        if cls.__module__.startswith("wellcond.") and not cls.__module__.startswith("wellcond.cli.")
    }
    assert {name for name in public if not name.startswith("_")} <= entries


@pytest.mark.slow
def test_the_map_shows_every_room_once_and_arrows_point_down() -> None:
    house = rooms.read(ROOT / "src" / "wellcond")
    folders = {path.name for path in (ROOT / "src" / "wellcond").iterdir() if (path / "__init__.py").exists()}
    assert folders <= house.keys()
    drawn = rooms.svg(house)
    heights = {
        name: float(y) for name, y in re.findall(r'data-room="(\w+)".*?<rect x="\S+" y="(\S+)"', drawn, flags=re.DOTALL)
    }
    assert heights.keys() == house.keys()
    assert all(heights[imported] < heights[name] for name, room in house.items() for imported in room.imports)


@pytest.mark.slow
def test_arrows_left_out_of_the_map_are_implied_by_those_drawn() -> None:
    house = rooms.read(ROOT / "src" / "wellcond")
    reached: dict[str, set[str]] = {}
    for name in house:  # each after those it imports
        direct = {start for start, end in rooms.drawn_imports(house) if end == name}
        reached[name] = direct.union(*(reached[other] for other in direct))
        assert house[name].imports <= reached[name]
