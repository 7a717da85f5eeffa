"""Accounts, rights and tasks of a simulated Windows: who can log on, what that makes, and what nobody gets to see."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.world import EVERY_CONSENT, PLAYBOOK, World, world
from winhost import __version__
from winhost.core.order import steps_for
from winhost.core.steps import DesiredResource
from winhost.lab.physics.local_accounts import DENY_BATCH, MARKER, Account
from winhost.lab.physics.windows_accounts import Accounts
from winhost.lab.physics.windows_errors import CmdletError, MissingDependency
from winhost.lab.physics.windows_files import decode_text, encode_text
from winhost.model.plan import Plan, PlanRequest, Stage
from winhost.resources.host import HostFacts
from winhost.resources.registry import host_answers

HOST = "win11-pro-1gpu"
OWNER = {"account": "winhost"}
BATCH = {**OWNER, "right": "SeBatchLogonRight"}


@pytest.fixture
def here(tmp_path: Path) -> World:
    return world(tmp_path, HOST)


@pytest.fixture
def owner(here: World) -> Account:
    """An account of ours that is an administrator, and so may log on as a batch job."""
    done(here, "LocalAccount", OWNER, {"there": True, "administrator": True})
    return account(here)


def account(here: World) -> Account:
    found = here.machine.accounts.find("winhost")
    assert found is not None
    return found


def done(here: World, resource: str, key: dict[str, str], desired: dict[str, Any]) -> dict[str, Any]:
    answer = asked(here, resource, key, desired)
    assert answer["ok"], answer
    return answer


def asked(here: World, resource: str, key: dict[str, str], desired: dict[str, Any]) -> dict[str, Any]:
    call = {"resource": resource, "verb": "set", "key": key, "desired": desired}
    (answer,) = json.loads(here.answers.invoke(json.dumps({"calls": [call]})))["answers"]
    found: dict[str, Any] = answer
    return found


def code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["code"])


# ---- what nobody gets to see


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every password that Windows was given."""
    given: list[str] = []

    def noting(cmdlet: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Accounts, account: str, secret: str, *more: str) -> Any:
            given.append(secret)
            return cmdlet(self, account, secret, *more)

        return noted

    for name in ("new_local_user", "set_local_user"):
        monkeypatch.setattr(Accounts, name, noting(getattr(Accounts, name)))
    return given


def planned(here: World, *desired: DesiredResource) -> Plan:
    """A plan of these requests alone."""
    facts = here.facts()
    machine_id = HostFacts(facts).os.machine_id
    stage = Stage(1, desired, steps_for(desired, host_answers(facts), prefix="1."))
    return Plan(
        here.host, machine_id, "synthetic", facts.read_at, __version__, PlanRequest("dda", PLAYBOOK, "llm-01"), (stage,)
    )


def test_no_secret_is_in_an_answer_a_journal_or_a_log(
    secrets: list[str], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    here = world(tmp_path, "server2025-role-installed")
    caplog.set_level(logging.DEBUG)
    before = here.state()
    plan = planned(
        here,
        DesiredResource("LocalAccount", OWNER, {"there": True, "administrator": True}, "account", "why"),
        DesiredResource("AccountRight", BATCH, {"granted": True}, "right", "why"),
        DesiredResource("AccountTasks", OWNER, {"jobs": "ready"}, "tasks", "why"),
    )
    here.apply(plan)
    assert account(here).profile is not None
    done(here, "AccountTasks", OWNER, {"keep_alive": "ready", "distro": "Ubuntu-24.04"})
    done(here, "AccountTasks", OWNER, {"keep_alive": "absent"})
    assert here.rollback(EVERY_CONSENT).outcome == "rolled back"
    assert here.state() == before
    assert len(set(secrets)) == len(secrets) == 3
    written = [path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()]
    everything = "\n".join(
        [*written, caplog.text, repr(here.events), repr(before), json.dumps(here.machine.snapshot())]
    )
    assert [secret for secret in secrets if secret in everything] == []


def test_each_registration_has_a_secret_of_its_own_and_all_tasks_have_the_same(here: World, owner: Account) -> None:
    first = owner.secret
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    second = owner.secret
    done(here, "AccountTasks", OWNER, {"keep_alive": "ready", "distro": "Ubuntu-24.04"})
    assert len({first, second, owner.secret}) == 3
    assert {task.secret for task in here.machine.accounts.tasks.values()} == {owner.secret}


def test_what_tells_an_account_of_ours_is_not_longer_than_windows_takes() -> None:
    assert len(MARKER) <= 48  # of a description: Microsoft's reference of New-LocalUser


# ---- who can log on


def without_right(here: World) -> None:
    here.machine.accounts.remove_local_group_member(account(here).sid)


def denied(here: World) -> None:
    here.machine.accounts.rights[DENY_BATCH].append(account(here).sid)


def password_changed(here: World) -> None:
    here.machine.accounts.set_local_user(account(here).sid, "Somebody's own, 1")


def disabled(here: World) -> None:
    account(here).enabled = False


LOGONS: list[tuple[Callable[[World], None], str, str]] = [
    (without_right, "Winhost.NoBatchRight", "AccountRight"),
    (denied, "Winhost.NoBatchRight", "AccountRight"),
    (password_changed, "Winhost.PasswordChanged", "AccountTasks"),
    (disabled, "Winhost.AccountDisabled", "LocalAccount"),
]


@pytest.mark.parametrize(("happens", "said", "mends"), LOGONS)
def test_a_first_job_says_why_its_account_cannot_log_on_and_a_later_one_what_would_mend_it(
    here: World, owner: Account, happens: Callable[[World], None], said: str, mends: str
) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    happens(here)
    with pytest.raises(CmdletError) as caught:
        here.machine.accounts.check_logon("winhost")
    assert caught.value.code == said
    with pytest.raises(MissingDependency) as waits:
        here.machine.accounts.check_can_run("winhost")
    assert waits.value.resource == mends


def test_nothing_runs_as_an_account_that_is_gone(here: World, owner: Account) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    here.machine.accounts.remove_local_user(owner.sid)
    with pytest.raises(MissingDependency, match="AccountTasks"):
        here.machine.accounts.check_can_run("winhost")


def test_a_changed_password_is_mended_by_registering_again(here: World, owner: Account) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    password_changed(here)
    answer = done(here, "AccountTasks", OWNER, {"logon": "password"})
    assert (answer["before"]["logon"], answer["after"]["logon"]) == ("refused", "password")
    here.machine.accounts.check_logon("winhost")


def test_the_right_alone_is_enough(here: World) -> None:
    done(here, "LocalAccount", OWNER, {"there": True})
    assert code(asked(here, "AccountTasks", OWNER, {"jobs": "ready"})) == "Winhost.NoBatchRight"
    assert account(here).profile is None
    done(here, "AccountRight", BATCH, {"granted": True})
    here.machine.accounts.check_logon("winhost")
    assert account(here).profile == "C:\\Users\\winhost"


@pytest.mark.parametrize("jobs", ["absent", "disabled"])
def test_without_a_ready_task_there_are_no_jobs_yet(here: World, owner: Account, jobs: str) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": jobs})
    with pytest.raises(MissingDependency, match="AccountTasks"):
        here.machine.accounts.check_can_run("winhost")


def test_an_account_leaves_no_profile_and_no_folder_for_jobs(here: World, owner: Account) -> None:
    files = here.machine.files
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    done(here, "WslConfig", OWNER, {"text": "[wsl2]\r\n"})
    done(here, "AccountTasks", OWNER, {"jobs": "absent"})
    done(here, "LocalAccount", OWNER, {"there": False})
    assert [*files.list_below("C:\\Users"), *files.list_below("C:\\ProgramData\\winhost\\accounts")] == []


def test_a_right_outlives_its_account_by_its_sid(here: World, owner: Account) -> None:
    done(here, "AccountRight", BATCH, {"granted": True})
    done(here, "LocalAccount", OWNER, {"there": False})
    held = [record.key["account"] for record in here.machine.instances("AccountRight")]
    assert owner.sid in held


def test_a_distro_keeps_its_account(here: World, owner: Account) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    here.machine.files.write("C:\\ProgramData\\winhost\\distros\\winhost\\Ubuntu-24.04\\ext4.vhdx", b"")
    assert code(asked(here, "LocalAccount", OWNER, {"there": False})) == "Winhost.HoldsDistro"
    assert here.machine.accounts.find("winhost") is owner


def test_a_restart_ends_sessions_and_leaves_the_tasks(here: World, owner: Account) -> None:
    done(here, "AccountTasks", OWNER, {"jobs": "ready"})
    owner.sessions = 2
    assert code(asked(here, "LocalAccount", OWNER, {"there": False})) == "Winhost.LoggedOn"
    here.machine.restart_computer()
    here.machine.wait_until_ready()
    assert owner.sessions == 0
    assert here.machine.accounts.task_state("winhost")["jobs"] == "ready"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-bom", "utf-16le"])
@pytest.mark.parametrize("text", ["", "[wsl2]\r\nmemory=8GB\r\n", "\u00e4\u2019\U0001f4a9\r\n"])
def test_a_text_comes_back_as_it_was(text: str, encoding: str) -> None:
    assert decode_text(encode_text(text, encoding)) == (text, encoding)
