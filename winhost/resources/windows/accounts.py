"""Windows accounts that winhost creates, their rights, and the scheduled tasks that run as them."""

import json
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, DependentRule, KeepIf, NotRestored, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CONFIG_OF_ACCOUNT, DISTROS_OF_ACCOUNT, TASKS_OF_ACCOUNT
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, Value, one_of, or_nothing, secret_reference, text


@resource(
    ResourceType(
        "LocalAccount",
        title="local accounts",
        order=280,
        key=("account",),
        sets={"there": FLAG, "administrator": FLAG},
        absent={
            "there": False,
            "sid": None,
            "enabled": False,
            "password_expires": False,
            "administrator": False,
            "ours": False,
            "profile": None,
            "sessions": None,
            "distros": None,
        },
        dependents=(
            DISTROS_OF_ACCOUNT,
            TASKS_OF_ACCOUNT,
            DependentRule("AccountRight", on=("account",), unless=("granted", (False,))),
            CONFIG_OF_ACCOUNT,
        ),
        # An account is removed only if winhost created it. For its distros see DISTROS_OF_ACCOUNT.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("there", of="before", one_of=(False,)),
                        Condition("there", one_of=(True,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not the account that winhost made any more",
                ),
            ),
            remove_if_created={"there": False},
        ),
    )
)
class LocalAccount(State):
    """A local account of Windows. winhost creates one with a random password that is stored nowhere, and removes only
    accounts that it created.

    ours: winhost created it, according to its description; profile: the folder that its first logon created; sessions:
    of people who are logged on now; distros: WSL disks in the profile or in the distro folders of an account of ours.
    A domain controller has no local accounts.
    """

    there: bool
    sid: str | None
    enabled: bool
    password_expires: bool
    administrator: bool
    ours: bool
    profile: str | None
    sessions: int | None
    distros: int | None


@resource(
    ResourceType(
        "AccountRight",
        title="rights of accounts",
        order=290,
        key=("account", "right"),
        sets={"granted": FLAG},
        after=("LocalAccount",),
        absent={"granted": False},
        dependents=(DISTROS_OF_ACCOUNT, TASKS_OF_ACCOUNT),
    )
)
class AccountRight(State):
    """A right of the local security policy that is granted to an account.

    Three rights are read: SeBatchLogonRight, SeServiceLogonRight and SeDenyBatchLogonRight; the first two can be
    granted and revoked. A local account is listed by its name, which a playbook must use; a request may also use its
    SID. Other accounts and groups are listed by SID. A group policy of the domain overrides what is set here.
    """

    granted: bool


NO_TASKS: Mapping[str, Json] = {
    "jobs": "absent",
    "keep_alive": "absent",
    "distro": None,
    "program": None,
    "logon": None,
}
REFUSED = "refused"  # of logon: the account's password was changed, so that its tasks cannot log on
STALE = "stale"  # of jobs or a task: its script is missing, or is that of another version of winhost
# States that rollback cannot restore: the value, the report of rollback, and the warning of the plan.
_UNRESTORABLE = {
    "logon": (REFUSED, "they log on again", "nobody knows the password that the account had"),
    "jobs": (STALE, "they run jobs again", "the script that was there is not kept"),
}
_DISTRO = text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "the name of a distro: letters, digits, dots and dashes")


@resource(
    ResourceType(
        "AccountTasks",
        title="the task that runs WSL",
        order=300,
        key=("account",),
        sets={
            "jobs": one_of("absent", "ready", "disabled"),
            "keep_alive": one_of("absent", "ready", "disabled"),
            "distro": or_nothing(_DISTRO),
            "logon": or_nothing(one_of("password", "s4u")),
        },
        after=("LocalAccount", "AccountRight", "Wsl"),
        absent=NO_TASKS,
        dependents=(DISTROS_OF_ACCOUNT, CONFIG_OF_ACCOUNT),
        irreversible=tuple(
            KeepIf((Condition(name, of="before", one_of=(broken,)),), why)
            for name, (broken, _, why) in _UNRESTORABLE.items()
        ),
        # Only winhost uses tasks of these names in this folder, so they are restored whatever they were changed to. An
        # unknown password of the account, or a script that was not stored, cannot be restored.
        undo=UndoRule(
            unconditional=True,
            not_restored=tuple(
                NotRestored(name, broken, reason) for name, (broken, reason, _) in _UNRESTORABLE.items()
            ),
        ),
    )
)
class AccountTasks(State):
    """The scheduled tasks that run as an account, in the task folder `winhost`.

    - jobs: the task that runs wsl.exe for winhost, one job at a time; stale if its script is missing or is that of
      another version of winhost.
    - keep_alive: the task that keeps `distro` running from the start of Windows, by `program`. Whether the distro runs
      now is a property of WslDistro.
    - logon: password, which is generated again whenever the tasks are registered; s4u, without a password (whether WSL
      starts like that is unverified); refused, if somebody changed the account's password.

    Reading and setting run a job that does nothing. Its first logon creates the account's profile.
    """

    jobs: str
    keep_alive: str
    distro: str | None
    program: str | None
    logon: str | None


NO_WATCHER: Mapping[str, Json] = {"task": "absent", "settings": None, "key": None, "digest": None}
_SCRIPT_NOT_STORED = "the script that was there is not kept"
_KEY_NOT_STORED = "the key that was there is not kept"


def _are_watcher_settings(value: Json) -> bool:
    """Tell whether the text is exactly what `watcher_settings` returns for these settings."""
    try:
        return isinstance(value, str) and value.isascii() and watcher_settings(**json.loads(value)) == value
    except (ValueError, TypeError):
        return False


def watcher_settings(
    *, url: str, programs: tuple[str, ...], full_screen: bool, unlocked: bool, gpu_memory: int | None
) -> str:
    """Return the text of a watcher's settings.json. gpu_memory: in bytes."""
    settings = {"url": url, "programs": [*programs], "full_screen": full_screen, "unlocked": unlocked}
    return json.dumps({**settings, "gpu_memory": gpu_memory})


_KEEP_IF_KEY = (KeepIf((Condition("digest", of="before", none_of=(None,)),), _KEY_NOT_STORED),)


@resource(
    ResourceType(
        "YieldWatcher",
        title="watchers for somebody at the desktop",
        order=380,
        key=("account",),
        sets={
            "task": one_of("absent", "ready", "disabled"),
            "settings": or_nothing(Value("the settings of the watcher, as one line of JSON", _are_watcher_settings)),
            "key": or_nothing(secret_reference("a yield key of the gateway")),
            "digest": SHA256_OR_NOTHING,
        },
        absent=NO_WATCHER,
        credential="key",
        irreversible=(*_KEEP_IF_KEY, KeepIf((Condition("task", of="before", one_of=(STALE,)),), _SCRIPT_NOT_STORED)),
        # Only winhost uses tasks of this name in this folder, so it is restored whatever it was changed to.
        undo=UndoRule(
            keep_if=_KEEP_IF_KEY, unconditional=True, not_restored=(NotRestored("task", STALE, "it watches again"),)
        ),
    )
)
class YieldWatcher(State):
    """The scheduled task `watch-ACCOUNT` of a desktop user's local account, and its files in
    %ProgramData%\\winhost\\watchers\\ACCOUNT, which only that account and administrators can read.

    task: starts when the account logs on, in its session, without elevation; stale if its script is missing or is that
    of another version of winhost. settings: the conditions that it watches, and the gateway's address. key: the secret
    reference from which winhost took the yield key, never the key itself; digest: the SHA-256 of the key on the host.
    """

    task: str
    settings: str | None
    key: str | None
    digest: str | None
