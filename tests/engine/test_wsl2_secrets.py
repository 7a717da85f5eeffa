"""The password of the account that owns the distro is on the host and nowhere else, whatever happens on the way."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.wsl2_world import ACCOUNT, Wsl2World, wsl2_world
from tests.errors import raises
from tests.secrets_kept import shown_in, watched
from winhost.lab.contract.agent_answers import InjectedFault
from winhost.lab.physics.windows_errors import agent_error
from winhost.model.documents import write_document


def overheard(here: Wsl2World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that goes over the wire from now on."""
    said: list[str] = []
    invoke: Callable[[str], str] = here.answers.invoke

    def listen(request: str, *rest: Any) -> str:
        answer = invoke(request, *rest)
        said.extend((request, answer))
        return answer

    monkeypatch.setattr(here.answers, "invoke", listen)
    return said


def told(here: Wsl2World, *documents: object) -> str:
    """Whatever anybody can read afterwards, on either side."""
    files = [path.read_text(encoding="utf-8") for path in here.store.path("x").parents[1].rglob("*") if path.is_file()]
    host = [repr(here.machine.files), json.dumps(here.machine.snapshot()), repr(here.machine.software.registry_values)]
    commands = [f"{task.program} {task.arguments}" for task in here.machine.accounts.tasks.values()]
    return "\n".join([*files, *host, *commands, *map(repr, here.events), *map(repr, documents)])


def test_a_whole_run_shows_it_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    here = wsl2_world(tmp_path)
    said, secrets = overheard(here, monkeypatch), watched(here.machine, monkeypatch)
    plan = here.plan()
    outcome = here.apply(plan)
    here.machine.accounts.unregister_scheduled_task(f"keep-alive-{ACCOUNT}")
    again = here.plan()
    repaired = here.apply(again)
    assert here.machine.accounts.tasks[f"jobs-{ACCOUNT}"].secret == secrets[-1], "what is looked for is what is used"
    facts = here.facts()
    everything = told(here, outcome, repaired, here.differing(plan), facts, write_document(plan), write_document(again))
    kept = here.rollback()
    assert len(set(secrets)) == 3, "one with the account, and one each time that tasks are made"
    assert said
    assert shown_in("\n".join([everything, told(here, kept), *said, caplog.text]), secrets) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_step_that_fails_shows_it_to_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    here = wsl2_world(tmp_path)
    said, secrets = overheard(here, monkeypatch), watched(here.machine, monkeypatch)
    error = agent_error("ProgramFailed", "InvalidResult", "It failed.")
    here.answers.faults.add(InjectedFault("AccountTasks", "set", error, after_change=after))
    with raises("StepFailed") as caught:
        here.apply(here.plan())
    assert secrets
    failure = caught.value
    everything = [told(here, failure), failure.what, str(failure.meaning), str(failure.hint), *said]
    assert shown_in("\n".join(everything), secrets) == []
