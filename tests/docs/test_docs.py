"""The documentation is true: its Python runs and prints what it says, its links lead somewhere,
nothing is left out."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import traceback
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote

import msgspec
import pytest
import yaml

import holdfast
from helpers.doc_pages import BLOCK, NAMES, PAGES, ROOT, run_page
from helpers.model_server import ModelServer
from holdfast import backends
from holdfast.cli.app import COMMANDS, EXIT_CODES, GROUPS, load_command
from holdfast.cli.parser.build import build_command
from holdfast.tasks.state import events
from holdfast.web.api import ENDPOINTS

LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")

HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

# A page about something that cannot be installed here says which file of tests runs it, where it
# can.
ELSEWHERE = re.compile(r"^<!-- run by (\S+) -->$", re.MULTILINE)

WITH_PYTHON = [name for name in NAMES if BLOCK.search((ROOT / name).read_text())]

RUN_HERE = [name for name in WITH_PYTHON if not ELSEWHERE.search((ROOT / name).read_text())]


@pytest.mark.parametrize("name", RUN_HERE)
def test_the_python_on_the_page_runs_prints_what_the_page_says_and_runs_again(
    name: str, tmp_path: Path
) -> None:
    with ModelServer() as server:  # whoever asks a model on the page asks this one
        model = {
            "OPENAI_BASE_URL": server.base_url,
            "OPENAI_API_KEY": "none",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "ANTHROPIC_BASE_URL": server.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
            "TMPDIR": str(tmp_path),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        printed, promised = run_page(name, tmp_path, **model)
        assert printed == promised
        # Who tries it once more in the same folder may see other output, and no error.
        if "in an empty folder" not in (ROOT / name).read_text():
            run_page(name, tmp_path, **model)


def test_two_pages_that_are_tried_in_one_folder_do_not_meet_in_one_store() -> None:
    opened = re.compile(r'open\(\s*"([^":]+)"')
    named = re.compile(r'\.(task|conversation|state|stream)\(\s*"([^"]+)"')
    pages = defaultdict[tuple[str, str, str], set[str]](set)
    for name in WITH_PYTHON:
        code = "".join(BLOCK.findall((ROOT / name).read_text()))
        for file in opened.findall(code):
            for kind, key in named.findall(code):
                pages[file, kind, key].add(name)
    assert len(pages) > 50
    assert {key: found for key, found in pages.items() if len(found) > 1} == {}


def test_the_notebook_runs_and_prints_what_it_shows() -> None:
    notebook = json.loads((ROOT / "docs/quickstart.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 4
    shown = "".join(line for cell in cells for out in cell["outputs"] for line in out["text"])
    program = "\n".join("".join(cell["source"]) for cell in cells)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown


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


@pytest.mark.parametrize("name", NAMES)
def test_a_page_can_be_read_in_ten_minutes(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)|^[| -]+$", "", text, flags=re.M | re.S)
    minutes = len(re.findall(r"[\w`]+", text)) / 220
    assert minutes <= 10 or name == "CHANGELOG.md", f"{name}: {minutes:.1f} minutes"


# Words of a title that nobody searches for.
VAGUE = {"introduction", "overview", "guide", "misc", "notes", "details", "things", "it"}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_one_title_with_words_that_people_search_for(name: str) -> None:
    text = re.sub(r"^```.*?^```$", "", (ROOT / name).read_text(), flags=re.M | re.S)
    [title] = re.findall(r"^# (.+)$", text, re.MULTILINE)
    words = set(re.findall(r"[a-z]+", title.lower()))
    assert words - VAGUE and len(title) <= 70, title


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


def read_cli_pages() -> str:
    """Return the text of the pages about the command line, the overview first."""
    pages = [ROOT / "docs/reference/cli.md", *sorted((ROOT / "docs/reference/cli").glob("*.md"))]
    assert len(pages) > 5
    return "".join(page.read_text() for page in pages)


def test_every_command_argument_and_option_is_documented() -> None:
    page = read_cli_pages()
    common = page.partition("## Common options")[2].partition("\n## ")[0]
    sections = dict(re.findall(r"^## `holdfast (\w+)`\n(.*?)(?=^## |\Z)", page, re.M | re.S))
    defaults = {name: group for name, group in GROUPS.items() if group.default is not None}
    paths = COMMANDS | {name: each.commands[each.default or ""] for name, each in defaults.items()}
    assert list(sections) and set(sections) == set(paths)
    for name, path in paths.items():
        command = build_command(load_command(path), name)
        names = "".join(f" {re.escape(each.argument.metavar)}" for each in command.positions)
        usage = rf"holdfast {name}{names}"
        usages = sections[name].replace("[", "").replace("]", "")
        assert re.search(rf"^\$ {usage}\b", usages, re.MULTILINE), usage
        for parameter in command.params:
            if parameter.param_type_name == "option":
                documented = sections[name] + common
                assert f"`{parameter.opts[0]}" in documented, f"{name} {parameter.opts[0]}"


def test_every_command_of_a_group_is_documented_with_its_other_name() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    rows = re.findall(
        r"^\| `holdfast (\w+ \w+)` \| \[`holdfast (\w+)`\]\([\w/.]*#", page, re.MULTILINE
    )
    assert dict(rows) == {
        f"{name} {command}": path.rpartition(".")[2]
        for name, group in GROUPS.items()
        for command, path in group.commands.items()
    }


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \|$", page.partition("## `holdfast ")[0], re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == EXIT_CODES


def test_commands_in_shell_blocks_and_deployment_files_exist() -> None:
    paths = COMMANDS | {
        f"{noun} {verb}": path
        for noun, group in GROUPS.items()
        for verb, path in group.commands.items()
    }
    paths |= {
        noun: group.commands[group.default]
        for noun, group in GROUPS.items()
        if group.default is not None
    }
    fence = re.compile(r"^```(?:console|sh|yaml|ini|dockerfile)\n(.*?)^```", re.M | re.S)
    call = re.compile(
        r"(?:^|[/\s$(])holdfast((?: +--?[\w-]+(?: +\S*:\S+)?)*) +([a-z]\w*)\b(.*)$", re.M
    )
    checked = 0
    for name in NAMES:
        for block in fence.findall((ROOT / name).read_text()):
            text = re.sub(r" #.*$| --completion \w+", "", block, flags=re.M)
            text = re.sub(r'[",\[\]]', " ", text)
            for _, command, rest in call.findall(re.sub(r" +", " ", text)):
                in_group = " ".join([command, *rest.split()[:1]])
                path = paths.get(in_group) or paths.get(command)
                assert path is not None, f"{name}: holdfast {command}"
                params = build_command(load_command(path), command).params
                options = {option for each in params for option in each.opts}
                options |= {option for each in params for option in each.secondary_opts}
                for option in re.findall(r"(?<=\s)--[a-z-]+", re.split(r"\||&&|;", rest)[0]):
                    assert option in options | {"--help"}, f"{name}: holdfast {command} {option}"
                    checked += 1
    assert checked > 30


def test_deployment_files_are_yaml() -> None:
    blocks = re.findall(
        r"^```yaml\n(.*?)^```", (ROOT / "docs/howto/deploy.md").read_text(), re.M | re.S
    )
    compose, deployment, job = [yaml.safe_load(block) for block in blocks]
    assert compose["services"]["worker"]["stop_grace_period"] == "60s"
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 30
    assert job["kind"] == "CronJob"


def test_every_endpoint_and_parameter_of_the_api_is_documented() -> None:
    page = (ROOT / "docs/reference/api.md").read_text()
    rows = re.findall(r"^\| (GET|POST) \| `([\w/-]+)` \| (.*?) \| (.*?) \|$", page, re.MULTILINE)
    documented = {(method, path): (names, summary) for method, path, names, summary in rows}
    assert set(documented) == {(each.method, each.path) for each in ENDPOINTS}
    for each in ENDPOINTS:
        names = [
            f"`{field.name}`" if field.required else f"*`{field.name}`*"
            for field in msgspec.structs.fields(each.params)
        ]
        assert documented[each.method, each.path] == (", ".join(names), each.summary)


def test_every_error_is_documented_with_its_facts() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    errors = [value for value in vars(holdfast.errors).values() if isinstance(value, type)]
    assert len(errors) > 15
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", page, re.MULTILINE | re.DOTALL))
    assert set(sections) == {error.__name__ for error in errors} - {
        "Retryable",
        "NeedsHuman",
        "DataProblem",
    }
    for error in errors:
        if issubclass(error, holdfast.HoldfastError):
            assert error.help_page() == f"docs/reference/errors.md#{error.__name__.lower()}"
            assert error.__name__.lower() in _anchors(ROOT / "docs/reference/errors.md")
        shown = inspect.getsource(error).partition("def __init__")[2]
        for attribute in re.findall(r"self\.([a-z]\w*)(?=[,\w. ]* = )", shown):
            assert f"`{attribute}`" in sections[error.__name__], (error.__name__, attribute)


def test_a_traceback_names_the_section_about_the_error() -> None:
    class Declined(holdfast.NotDone):
        """An error of an application."""

    for error, section in [
        (holdfast.NotFound("there is no such task"), "notfound"),
        (holdfast.errors.ReadOnly("the store cannot be written to"), "readonly"),
        (Declined("no money"), "notdone"),
    ]:
        assert error.__notes__ == [f"See docs/reference/errors.md#{section}"]
        assert "docs/" not in str(error)
    if sys.version_info >= (3, 11):
        last = traceback.format_exception_only(holdfast.NotFound("there is no such task"))[-1]
        assert last == "See docs/reference/errors.md#notfound\n"


def test_every_optional_protocol_of_a_backend_is_documented() -> None:
    page = (ROOT / "docs/howto/write-a-backend.md").read_text()
    protocols = [name for name in backends.__all__ if name.startswith("Supports")]
    assert protocols
    for name in [*protocols, "BillsRequests", "IndexHost"]:
        [method] = re.findall(rf"^\| `{name}` \| `(\w+)", page, re.MULTILINE)
        protocol = getattr(backends, name)
        assert method in {*vars(protocol), *protocol.__annotations__}, name


def test_every_event_of_a_task_is_documented() -> None:
    page = (ROOT / "docs/reference/statuses-and-events.md").read_text()
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
