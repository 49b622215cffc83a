"""What the build of the site adds to the written pages: the reference, tables, the room map, and links to names."""

from __future__ import annotations

import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from markdown import Extension, Markdown
from markdown.inlinepatterns import SimpleTextInlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as SitePage

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import notebooks
import pages
import reference
import rules
import tables

import benchmarks  # noqa: F401, which tables need later, when mkdocs has restored the path

ROOT = Path(__file__).resolve().parents[2]
BOOSTS = {
    "guides/": 4.0,
    "errors": 4.0,
    "cases/": 4.0,
    "rules/": 3.5,
    "reference/": 0.25,
    "reproduction/": 0.5,
    "changelog": 0.25,
}
"""How far up the search puts pages whose paths begin so: what a person asks for comes before an entry of the API."""
log = get_plugin_logger("wellcond")


class Formulas(Extension):
    """Leaves underscores alone: q̃_xy is a symbol, and emphasis is written with asterisks."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Called when the converter is set up."""
        md.inlinePatterns.register(SimpleTextInlineProcessor("(_+)"), "underscores", 70)  # before emphasis, at 60


def on_config(config: MkDocsConfig) -> None:
    """Put the pages of the reference, the rules and the notebooks into the navigation."""
    config.markdown_extensions.append(Formulas())
    written = {
        "API reference": ["reference/index.md", *({page.title.strip("`"): page.path} for page in reference.pages())],
        "Notebooks": [
            "notebooks/index.md",
            *({notebooks.title(path): f"notebooks/{path.stem}.md"} for path in notebooks.PATHS),
        ],
        "Rules": ["rules.md", *({name: f"rules/{name}.md"} for name in rules.names())],
    }
    for item in config.nav or []:
        if isinstance(item, dict):
            item.update({title: pages for title, pages in written.items() if title in item})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add pages that are written elsewhere: by the reference, at the root of the repository, by the benchmarks."""
    contents = {page.path: page.markdown() for page in reference.pages()}
    contents["reference/index.md"] = reference.index()
    contents["rules.md"] = rules.index()
    contents |= {f"rules/{name}.md": rules.page(name) for name in rules.names()}
    contents["notebooks/index.md"] = notebooks.index()
    contents |= {f"notebooks/{path.stem}.md": notebooks.page(path) for path in notebooks.PATHS}
    for name in ("CHANGELOG", "CONTRIBUTING"):
        contents[f"{name.lower()}.md"] = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
    for source, content in contents.items():
        files.append(File.generated(config, source, content=content))
    for path in notebooks.PATHS:
        files.append(File.generated(config, f"notebooks/{path.name}", abs_src_path=str(path)))
    for path in sorted(tables.RESULTS.glob("*.json")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))


def on_page_markdown(markdown: str, page: SitePage, **kwargs: Any) -> str:
    """Fill in tables, draw the room map, link every `wc.name` to its entry, and say how far up the search puts it."""
    for beginning, boost in BOOSTS.items():
        if page.file.src_uri.startswith(beginning):
            page.meta.setdefault("search", {"boost": boost})
    markdown = tables.filled(markdown).replace(f"]({tables.FOLDER}/", "](results/")
    markdown = pages.with_drawn_map(markdown)
    markdown = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)  # GitHub escapes | in code
    if page.file.src_uri.startswith(("reference/", "changelog")):
        return markdown
    fenced = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if i % 2 else _linked(part, page) for i, part in enumerate(fenced))


def _linked(text: str, page: SitePage) -> str:
    """`wc.name` and `wc.name(…)` in a page as links; a name that does not exist is a warning, and fails the build."""
    names = {name for entry in reference.pages() for name in entry.names}

    def link(code: re.Match[str]) -> str:
        name = f"wellcond.{code[1]}"
        if name in names:
            return f"[{code[0]}][{name}]"
        owner, _, member = name.rpartition(".")
        is_member = owner in names and hasattr(pkgutil.resolve_name(owner), member)
        if not is_member and not any(known.startswith(name) for known in names):
            log.warning("%s: %s is no public name", page.file.src_uri, name)
        return code[0]

    return re.sub(r"(?<!\[)`wc\.(\w+(?:\.\w+)*)[^`\n]*`", link, text)


def on_post_build(config: MkDocsConfig) -> None:
    """Fail unless every public name has an entry with its signature."""
    site = Path(config.site_dir)
    for page in reference.pages():
        html = (site / page.path).with_suffix(".html").read_text(encoding="utf-8")
        for name in (*page.names, *page.results):
            entry = html.partition(f'id="{reference.identifier(name)}"')[2].partition(' id="')[0]
            needs_signature = name in page.names and reference.has_signature(name)
            if not entry or (needs_signature and "doc-signature" not in entry):
                raise PluginError(f"{page.path}: no entry with a signature for {name}")
