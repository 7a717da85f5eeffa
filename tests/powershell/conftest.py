"""Tests that need a PowerShell; without one they are skipped, and one line says what to do about it."""

from pathlib import Path

import pytest

from winhost.lab.powershell.powershell_engine import CHOSEN, find_engine
from winhost.model.errors import UsageError

HERE = Path(__file__).parent
BUSY_S = 600  # a machine with other work took 156 s for what else takes 20


def why_not() -> str:
    try:
        find_engine()
    except UsageError as error:
        return f"the scripts did not run in a real PowerShell: {error.what}. {error.hint}"
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mine = [item for item in items if HERE in item.path.parents]
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUSY_S))
    if not mine or not (reason := why_not()):
        return
    # One stands for all of them: hundreds of times the same line says less.
    mine[0].add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=mine[1:])
    items[:] = [item for item in items if item is mine[0] or HERE not in item.path.parents]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if "s" not in terminalreporter.reportchars and (reason := why_not()):
        terminalreporter.write_line(f"SKIPPED: {reason}")


@pytest.fixture(autouse=True, scope="session")
def _the_variable_is_not_ours() -> None:
    assert CHOSEN == "WINHOST_PWSH", "the workflow and the documentation say so"
