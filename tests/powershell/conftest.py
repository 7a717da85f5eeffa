"""Tests that need a PowerShell: without one each is skipped; where one was named and is not there, the run fails."""

import os
from pathlib import Path

import pytest

from winhost.lab.powershell.powershell_engine import ENGINE_VARIABLE, find_engine
from winhost.model.errors import UsageError

HERE = Path(__file__).parent
BUSY_S = 3600  # some start a PowerShell twenty times, and a busy machine takes eight times as long for each


def why_not() -> str:
    try:
        find_engine()
    except UsageError as error:
        return error.what
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mine = [item for item in items if str(item.path).startswith(f"{HERE}{os.sep}")]
    reason = why_not() if mine else ""
    if reason and os.environ.get(ENGINE_VARIABLE):
        raise pytest.UsageError(reason)
    for item in mine:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(BUSY_S))
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True, scope="session")
def _the_variable_is_not_ours() -> None:
    assert ENGINE_VARIABLE == "WINHOST_PWSH", "the workflow and the documentation say so"
