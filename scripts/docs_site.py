"""Hooks of the documentation site (`make docs`): navigation, pages outside docs/, links, llms.txt.

The navigation is what docs/index.md lists, so that a page is added in one place. The README and the
other pages of the root become pages of the site. Links to source files become text: the site has no
copy of them. llms.txt lists the pages, and llms-full.txt has their text, for assistants.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

# Pages of the root, and their place in the site.
ROOT_PAGES = {
    path.relative_to(ROOT).as_posix(): f"project/{path.stem.lower()}.md"
    for path in sorted(ROOT.glob("*.md"))
}

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r'(<img src=")([^":]+)')
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)(?::? ?(.*))?$")
NAMES_MARK = "<!-- public names: written here by make docs -->"
INTEGRATIONS_MARK = "<!-- integrations: written here by make docs -->"
PICTURE = re.compile(r"<picture>.*?</picture>", re.DOTALL)


def read_contents(text: str) -> list[tuple[int, str, str, str]]:
    """Return the headings and links of docs/index.md: level, title, target, description.

    A heading has no target. The level of a link is 0.
    """
    found: list[tuple[int, str, str, str]] = []
    for line in text.splitlines():
        heading = re.match(r"^(##+) (.+)$", line)
        if heading:
            found.append((len(heading[1]) - 1, heading[2], "", ""))
        elif item := ITEM.match(line):
            found.append((0, item[1], item[2], item[3] or ""))
    return found


def build_nav(contents: list[tuple[int, str, str, str]]) -> list[dict[str, Any]]:
    """Return the navigation of mkdocs: sections of `##`, inside them sections of `###`."""
    nav: list[dict[str, Any]] = [{"Home": "index.md"}]
    stack: list[list[dict[str, Any]]] = [nav]
    for level, title, target, _ in contents:
        if target:
            stack[-1].append({title: to_site(DOCS / "index.md", target)})
        else:
            section: list[dict[str, Any]] = []
            del stack[level:]
            stack[-1].append({title: section})
            stack.append(section)
    return nav


def to_site(source: Path, target: str) -> str | None:
    """Return where a link of a page leads in the site, from its root; None if it is not there."""
    path = (source.parent / target).resolve()
    name = path.relative_to(ROOT).as_posix()
    if name in ROOT_PAGES:
        return ROOT_PAGES[name]
    return path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else None


def rewrite_links(text: str, source: Path, place: str) -> str:
    """Return the text of a page with links that are right at its place in the site."""

    def replace(link: re.Match[str]) -> str:
        mark, label, target = link.groups()
        path, hash_sign, anchor = target.partition("#")
        if "://" in target or not path:
            return link[0]
        name = to_site(source, path)
        if name is None or (DOCS / name).is_dir():
            return label if Path(path).name in label else f"{label} (`{path.lstrip('./')}`)"
        relative = os.path.relpath(name, os.path.dirname(place)).replace(os.sep, "/")
        return f"{mark}[{label}]({relative}{hash_sign}{anchor})"

    def replace_source(image: re.Match[str]) -> str:
        name = to_site(source, image[2])
        assert name is not None, image[0]
        return image[1] + os.path.relpath(name, os.path.dirname(place)).replace(os.sep, "/")

    parts = FENCE.split(text)
    return "".join(
        part if part.startswith("```") else IMAGE.sub(replace_source, LINK.sub(replace, part))
        for part in parts
    )


def show_picture(found: re.Match[str]) -> str:
    """Return both versions of a picture, each for its colour scheme of the theme."""
    [dark] = re.findall(r'srcset="([^"]+)"', found[0])
    [light] = re.findall(r'src="([^"]+)"', found[0])
    [words] = re.findall(r'alt="([^"]+)"', found[0])
    return f"![{words}]({light}#only-light)\n![{words}]({dark}#only-dark)"


def fill_in(text: str) -> str:
    """Replace the two marks of the Python reference by what the package has."""
    for mark, write in ((NAMES_MARK, list_names), (INTEGRATIONS_MARK, list_integrations)):
        if mark in text:
            text = text.replace(mark, write())
    return text


def list_names() -> str:
    """Return a table of the public names with the first line of each docstring."""
    import holdfast

    rows = []
    for name in sorted(holdfast.__all__, key=str.lower):
        value = getattr(holdfast, name)
        documented = callable(value) or inspect.ismodule(value)
        summary = (inspect.getdoc(value) or "").partition("\n")[0] if documented else ""
        rows.append(f"| `holdfast.{name}` | {summary.replace('|', chr(92) + '|')} |")
    return "\n".join(["## Every public name", "", "| Name | |", "| --- | --- |", *rows])


def list_integrations() -> str:
    """Return a directive of mkdocstrings for each module of `holdfast.integrations`."""
    entries = sorted((ROOT / "src/holdfast/integrations").iterdir())
    names = [entry.stem for entry in entries if not entry.name.startswith("_")]
    return "\n\n".join(f"::: holdfast.integrations.{name}" for name in names)


def read_page(name: str) -> tuple[Path, str]:
    """Return the file of a page of the site, and its text."""
    for source, place in ROOT_PAGES.items():
        if place == name:
            return ROOT / source, (ROOT / source).read_text(encoding="utf-8")
    return DOCS / name, fill_in((DOCS / name).read_text(encoding="utf-8"))


def write_llms(site: Path) -> None:
    """Write llms.txt, the list of pages, and llms-full.txt, their text."""
    contents = read_contents((DOCS / "index.md").read_text(encoding="utf-8"))
    lines = ["# Holdfast", "", "> Durable execution and state for LLM agents, in Python.", ""]
    lines += ["The text of all pages is in llms-full.txt.", ""]
    full = []
    for level, title, target, description in contents:
        if not target:
            lines += ["", f"{'#' * (level + 1)} {title}", ""]
            continue
        name = to_site(DOCS / "index.md", target)
        assert name is not None
        note = f": {description}" if description else ""
        lines.append(f"- [{title}]({name.removesuffix('.md')}.html){note}")
        full.append(f"<!-- {name} -->\n\n{read_page(name)[1].strip()}\n")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")


# -- called by mkdocs ----------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    config.nav = build_nav(read_contents((DOCS / "index.md").read_text(encoding="utf-8")))
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, place in ROOT_PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source, _ = read_page(page.file.src_uri)
    text = PICTURE.sub(show_picture, fill_in(markdown))
    return rewrite_links(text, source, page.file.src_uri)


def on_post_build(config: Any) -> None:
    write_llms(Path(config.site_dir))
