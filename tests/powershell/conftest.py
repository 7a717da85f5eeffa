"""Tests that need a PowerShell; without one they are skipped, and one line says what to do about it."""

from pathlib import Path

import pytest

from winhost.lab.engine import CHOSEN, NoEngine, find_engine

HERE = Path(__file__).parent


def why_not() -> str:
    try:
        find_engine()
    except NoEngine as error:
        return f"{error.what}. {error.hint}"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := why_not():
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if reason := why_not():
        terminalreporter.write_line(f"The scripts did not run in a real PowerShell: {reason}")


@pytest.fixture(autouse=True, scope="session")
def _the_variable_is_not_ours() -> None:
    assert CHOSEN == "WINHOST_PWSH", "the workflow and the documentation say so"
