"""The documentation is true: its Python runs and prints what it says, its links lead somewhere,
nothing is left out."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from typer.main import get_command

import holdfast
from helpers.doc_pages import BLOCK, NAMES, PAGES, ROOT, run_page
from helpers.model_server import ModelServer
from holdfast import backends
from holdfast.cli.app import app
from holdfast.tasks.state import events

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")

HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

# A page about something that cannot be installed here says which file of tests runs it, where it
# can.
ELSEWHERE = re.compile(r"^<!-- run by (\S+) -->$", re.MULTILINE)

WITH_PYTHON = [name for name in NAMES if BLOCK.search((ROOT / name).read_text())]

RUN_HERE = [name for name in WITH_PYTHON if not ELSEWHERE.search((ROOT / name).read_text())]


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_python_on_the_page_runs_and_prints_what_the_page_says(
    name: str, tmp_path: Path
) -> None:
    with ModelServer() as server:  # whoever asks a model on the page asks this one
        model = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
        }
        printed, promised = run_page(name, tmp_path, **model)
    assert printed == promised


def test_the_pages_have_python_to_run() -> None:
    assert "README.md" in RUN_HERE
    assert "docs/tutorial.md" in RUN_HERE
    assert len(RUN_HERE) > 8


def test_a_page_that_is_not_run_here_is_run_by_the_tests_that_it_names() -> None:
    for name in WITH_PYTHON:
        for tests in ELSEWHERE.findall((ROOT / name).read_text()):
            assert re.search(rf'run_page\(\s*"{name}"', (ROOT / tests).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_links_on_the_page_lead_somewhere(name: str) -> None:
    page = ROOT / name
    for target in LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / unquote(path)).resolve() if path else page
        assert linked.exists(), f"{name} links to {target}"
        assert linked.is_relative_to(ROOT), f"{name} links to {target}"
        if anchor:
            assert anchor in _anchors(linked), f"{name} links to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        targets = [target.partition("#")[0] for target in LINK.findall(page.read_text())]
        waiting += [
            (page.parent / target).resolve() for target in targets if target and "://" not in target
        ]
    assert set(PAGES) <= reached


def test_every_command_and_option_is_documented() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    commands = get_command(app).commands  # type: ignore[attr-defined]
    assert commands
    for name, command in commands.items():
        assert f"## `holdfast {name}`" in page, name
        for parameter in command.params:
            if parameter.param_type_name == "option" and "--help" not in parameter.opts:
                assert f"`{parameter.opts[0]}" in page, f"{name} {parameter.opts[0]}"
    for found in re.findall(r"^## `holdfast (\w+)`", page, re.MULTILINE):
        assert found in commands, found


def test_every_error_is_documented_with_its_facts() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    errors = [value for value in vars(holdfast.errors).values() if isinstance(value, type)]
    assert len(errors) > 15
    for error in errors:
        assert re.search(rf"^\| `{error.__name__}` \|", page, re.MULTILINE), error.__name__
    for found in re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE):
        assert found in vars(holdfast.errors), found


def test_every_optional_protocol_of_a_backend_is_documented() -> None:
    page = (ROOT / "docs/howto/write-a-backend.md").read_text()
    protocols = [name for name in backends.__all__ if name.startswith("Supports")]
    assert protocols
    for name in [*protocols, "BillsRequests", "IndexHost"]:
        [method] = re.findall(rf"^\| `{name}` \| `(\w+)", page, re.MULTILINE)
        protocol = getattr(backends, name)
        assert method in {*vars(protocol), *protocol.__annotations__}, name


def test_every_event_of_a_task_is_documented() -> None:
    page = (ROOT / "docs/reference/tasks.md").read_text()
    section = page.partition("## Events")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    assert sorted(", ".join(cells).replace("`", "").split(", ")) == sorted(events._TYPES)


def test_the_fifteen_promises_are_listed_and_each_that_holds_names_a_test() -> None:
    page = (ROOT / "docs/explanation/guarantees.md").read_text()
    sections = re.split(r"^### (\d+)\. ", page, flags=re.MULTILINE)[1:]
    assert [int(number) for number in sections[::2]] == list(range(1, 16))
    for number, section in zip(sections[::2], sections[1::2], strict=True):
        [state] = re.findall(r"^\*\*(Holds|Holds in part|Not built yet)\b", section, re.MULTILINE)
        assert (state == "Not built yet") != bool(
            re.search(r"\]\(\.\./\.\./(tests|src)/", section)
        ), number


def test_the_changelog_has_the_current_version() -> None:
    assert f"## [{holdfast.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def _anchors(page: Path) -> set[str]:
    headings = HEADING.findall(page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
