"""Fixtures for the tests on the OpenAI SDK: a model, a chat, and a chat loop in its six forms.

Named by each test module that wants them (`pytest_plugins`), since not every environment that runs
tests of this folder has the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import holdfast
from helpers.model_server import ModelServer

from .openai_loop import FORMS, Loop


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture
def chat() -> Iterator[holdfast.Conversation]:
    with holdfast.open("memory://") as store:
        yield store.conversation("chat")


@pytest.fixture(params=FORMS)
def loop(request: pytest.FixtureRequest, server: ModelServer) -> Iterator[Loop]:
    api, kind = request.param.split("-")
    with holdfast.open("memory://") as store:
        yield Loop(server, store, api, kind == "async")
