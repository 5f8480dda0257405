"""The pages and the example about PydanticAI do what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.doc_pages import run_page
from helpers.model_server import ModelServer

from .test_openai_examples import end, hear, started

pytest_plugins = ["integrations.openai_fixtures"]


def check(printed_and_said: tuple[object, object]) -> None:
    printed, said = printed_and_said
    assert printed == said


def settings(server: ModelServer) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": server.base_url,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def test_the_page_about_pydantic_ai_runs_and_runs_again(
    server: ModelServer, tmp_path: Path
) -> None:
    check(run_page("docs/howto/pydantic-ai.md", tmp_path, **settings(server)))
    run_page("docs/howto/pydantic-ai.md", tmp_path, **settings(server))


def test_the_page_about_durable_tools_runs(server: ModelServer, tmp_path: Path) -> None:
    check(run_page("docs/howto/durable-tools.md", tmp_path, **settings(server)))


def test_the_payer_killed_in_a_model_call_pays_once(
    server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "pydantic_ai_payments.py", "bill-17", 'call pay {"amount": 7, "to": "Ann"}'
    with started(server, *command) as program:
        assert hear(program) == "paying 7 to Ann"
        server.wait_for_requests(2)
    with started(server, *command) as program:
        assert end(program) == ["tool said: paid"]
    assert len((tmp_path / "payments.txt").read_text().splitlines()) == 1
