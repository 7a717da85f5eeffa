"""The watcher that asks for the GPUs on behalf of somebody at the desktop."""

import json
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, KeepIf, NotRestored, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.values import SHA256_OR_NOTHING, Value, one_of, or_nothing, secret_reference

NO_WATCHER: Mapping[str, Json] = {"task": "absent", "settings": None, "key": None, "digest": None}
STALE = "stale"  # a task: its script is gone, or of another winhost
_NOT_KEPT = "the script that was there is not kept"
_KEY_NOT_KEPT = "the key that was there is not kept"


def _settings(value: Json) -> bool:
    """True if the text is as `watcher_settings` writes it."""
    try:
        return isinstance(value, str) and value.isascii() and watcher_settings(**json.loads(value)) == value
    except (ValueError, TypeError):
        return False


def watcher_settings(
    *, url: str, programs: tuple[str, ...], full_screen: bool, unlocked: bool, gpu_memory: int | None
) -> str:
    """The text of its settings.json. gpu_memory: in bytes."""
    said = {"url": url, "programs": [*programs], "full_screen": full_screen, "unlocked": unlocked}
    return json.dumps({**said, "gpu_memory": gpu_memory})


_KEPT = (KeepIf((Condition("digest", of="before", none_of=(None,)),), _KEY_NOT_KEPT),)


@resource(
    ResourceType(
        "YieldWatcher",
        title="watchers for somebody at the desktop",
        order=380,
        key=("account",),
        sets={
            "task": one_of("absent", "ready", "disabled"),
            "settings": or_nothing(Value("the settings of the watcher, as one line of JSON", _settings)),
            "key": or_nothing(secret_reference("a yield key of the gateway")),
            "digest": SHA256_OR_NOTHING,
        },
        absent=NO_WATCHER,
        credential="key",
        irreversible=(*_KEPT, KeepIf((Condition("task", of="before", one_of=(STALE,)),), _NOT_KEPT)),
        # It bears our name and stands where only ours stand: it goes back, whatever it was changed to since.
        undo=UndoRule(
            keep_if=_KEPT,
            unconditional=True,
            not_restored=(NotRestored("task", STALE, "it watches again"),),
        ),
    )
)
class YieldWatcher(State):
    """The scheduled task `watch-ACCOUNT` of a local account whose owner works at the desktop, and its files in
    %ProgramData%\\winhost\\watchers\\ACCOUNT, which only that account and administrators can read.

    task: starts with the logon of the account, in its session, without elevation; stale, where its script is gone or
    another winhost's. settings: what it looks for, and the gateway's address. key: the secret reference by which
    winhost found the yield key that it wrote there, never the key; digest: the SHA-256 of the key that is there.
    """

    task: str
    settings: str | None
    key: str | None
    digest: str | None
