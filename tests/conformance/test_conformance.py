"""Every backend passes the whole conformance suite, and the suite is easy to find one's way
into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import holdfast.conformance
from holdfast.backends import Backend
from holdfast.backends.files import FilesBackend
from holdfast.backends.memory import MemoryBackend
from holdfast.backends.sqlite import SQLiteBackend
from holdfast.conformance import BackendConformance, BackendModel, DurableBackendConformance


class TestMemory(BackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return MemoryBackend()


class TestSQLite(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return SQLiteBackend(place / "store.db", durability="disk")


class TestSQLiteThatSurvivesTheProcessOnly(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return SQLiteBackend(place / "store.db", durability="process")


class TestFiles(DurableBackendConformance):
    def open_backend(self, place: Path) -> Backend:
        return FilesBackend(place / "store")


class MemoryModel(BackendModel):
    def open_backend(self, place: Path) -> Backend:
        return MemoryBackend()


TestMemoryModelByItself = MemoryModel.TestCase


def test_every_module_of_the_suite_explains_its_failed_asserts() -> None:
    modules = {path.stem for path in Path(holdfast.conformance.__file__).parent.glob("*.py")}
    not_tests = {"__init__", "suite", "build", "lists", "model"}
    assert set(holdfast.conformance._MODULES) == modules - not_tests


def test_every_test_of_the_suite_has_a_name_of_its_own() -> None:
    # A second one of the same name would silently replace the first.
    themes = [base for base in DurableBackendConformance.__mro__ if base.__name__.endswith("Tests")]
    names = [name for theme in themes for name in vars(theme) if name.startswith("test_")]
    assert len(names) == len(set(names)) > 100


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("pytest", "import holdfast.conformance"),
        (
            "hypothesis",
            "from holdfast.conformance import BackendConformance as B; B.open_backend; import "
            "holdfast.conformance.model",
        ),
    ],
)
def test_what_is_missing_is_said_with_what_to_install(missing: str, code: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; {code}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1
    assert f"pip install {missing}" in ended.stderr.splitlines()[-1]


def test_the_library_itself_needs_neither_pytest_nor_hypothesis() -> None:
    script = (
        "import sys; sys.modules.update(pytest=None, hypothesis=None); import holdfast, "
        "holdfast.backends.faulty"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
