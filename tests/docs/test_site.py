"""`make docs` builds a site of all pages, which is read and searched without any network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast
from helpers.doc_pages import NAMES, ROOT

CHROMIUM = os.environ.get("HOLDFAST_CHROMIUM") or shutil.which("chromium") or ""


def build(folder: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir"]
    return subprocess.run(
        [*command, str(folder)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


def place(name: str) -> str:
    """Return where a page is in the site."""
    page = Path(name)
    if page.parts[0] == "docs":
        return page.relative_to("docs").with_suffix("").as_posix()
    return f"project/{page.stem.lower()}"


def check_pages(site: Path) -> None:
    """Every page is built, and listed for assistants."""
    listed = (site / "llms.txt").read_text()
    full = (site / "llms-full.txt").read_text()
    for name in NAMES:
        built = site / f"{place(name)}.html"
        assert built.is_file(), name
        if name != "docs/index.md":
            assert f"({place(name)}.html)" in listed, f"add {name} to docs/index.md"
            assert f"<!-- {place(name)}.md -->" in full, name


def check_loads(site: Path) -> None:
    """No page loads anything from the network."""
    loads = re.compile(
        r'<(?:script|link|img|iframe)\b[^>]*?(?:src|href)="?((?:https?:)?//[^"\s>]+)'
    )
    for page in site.rglob("*.html"):
        assert loads.findall(page.read_text()) == [], page.relative_to(site)


def check_reference(site: Path) -> None:
    """Every public name and every error has its anchor."""
    reference = "".join(page.read_text() for page in (site / "reference/python").glob("*.html"))
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        is_error = isinstance(value, type) and issubclass(value, BaseException)
        if not name.startswith("Async") and not is_error and name not in ("errors", "types"):
            assert f'id="holdfast.{name}"' in reference, name
    errors = (site / "reference/errors.html").read_text()
    for name, value in vars(holdfast.errors).items():
        if isinstance(value, type):
            assert f'id="{name.lower()}"' in errors, name


def check_search(site: Path) -> None:
    """A reader searches from a folder, without a server and without a network."""
    if not CHROMIUM:
        message = "LEFT OUT: the browser tests need Chromium (apt-get install chromium)"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    wrong: list[str] = []

    def check(request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            wrong.append(request.url)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", check)
        page.goto((site / "index.html").as_uri())
        page.locator("input[data-md-component=search-query]").click()
        page.keyboard.type("OutcomeUnknown")
        results = page.locator(".md-search-result__item")
        results.first.wait_for()
        assert "Errors" in str(results.all_inner_texts())
        page.goto((site / "howto/tasks.html").as_uri())
        assert page.locator("button[data-clipboard-target], .md-code__button").count() > 0
        browser.close()
    assert wrong == []


@pytest.mark.slow
def test_the_site_has_every_page_loads_nothing_and_is_searched_offline(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_pages(tmp_path)
    check_loads(tmp_path)
    check_reference(tmp_path)
    check_search(tmp_path)


@pytest.mark.slow
def test_a_dead_link_fails_the_build(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("docs", "src", "scripts"):
        (root / name).mkdir(parents=True)
    (root / "docs/index.md").write_text("# Home\n\n- [Page](page.md)\n")
    (root / "docs/page.md").write_text("# Page\n\nSee [the other](page.md#no-such-section).\n")
    (root / "docs/assets").mkdir()
    for name in ("mkdocs.yml", "scripts/docs_site.py", "docs/assets/site.css"):
        (root / name).write_text((ROOT / name).read_text())
    done = build(tmp_path / "site", root)
    assert done.returncode == 1
    assert "no-such-section" in done.stdout + done.stderr
