"""The versions with which a host's endpoint last answered, so that changed ones are noticed later."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime

from winhost.core.dataclass import dataclass
from winhost.engine.store import Store, private_folder
from winhost.model.files import write_whole
from winhost.model.served import Version

BOOT, WSL, WINDOWS = "boot", "wsl", "windows"


@dataclass(frozen=True)
class ChangedVersion:
    """A component whose version has changed. what: driver, toolkit, wsl, kernel, windows, the vLLM of a model, or boot,
    which has no versions: the machine was restarted.
    """

    what: str
    verified: str | None
    now: str | None


@dataclass(frozen=True)
class SinceVerified:
    """The changes since the endpoint last answered. at: that time; unknown: components whose version was known then and
    could not be read now.
    """

    at: str
    changed: tuple[ChangedVersion, ...]
    unknown: tuple[str, ...] = ()


def save_verified(host: str, versions: Sequence[Version]) -> None:
    """Save the versions with which the endpoint answers now. Raises UsageError (NotPrivate), OSError."""
    path = Store().verified(host)
    private_folder(path.parent)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    write_whole(
        path,
        [json.dumps({"at": at, "versions": {each.name: each.version for each in versions}}, indent=2) + "\n"],
        mode=0o600,
    )


def changes_since_verified(host: str, versions: Sequence[Version]) -> SinceVerified | None:
    """Compare versions with those of the last verification; None without a readable file. A component that was unknown
    then does not count as changed.
    """
    try:
        stored = json.loads(Store().verified(host).read_text("utf-8"))
        at, before = str(stored["at"]), dict(stored["versions"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    different = [each for each in versions if each.name in before and before[each.name] != each.version]
    changed = (
        ChangedVersion(each.name, None, None)
        if each.name == BOOT
        else ChangedVersion(each.name, before[each.name], each.version)
        for each in different
    )
    now = {each.name for each in versions}
    unknown = [each for each in before if each not in now]
    if WSL in now and WINDOWS not in now and WINDOWS not in unknown:
        unknown.append(WINDOWS)
    return SinceVerified(at, tuple(changed), tuple(unknown))
