# key {group: text}   state {there: bool, system: bool, ours: bool, gid: number | null, members: [text]}
from __future__ import annotations

from winhost.agent.linux_head import *


@reads("LinuxGroup", group=account_name)
def linux_groups(key: Key | None) -> Found:
    for name in [key["group"]] if key else sorted(groups()):
        yield {"group": name}, linux_group(name)


def linux_group(name: str) -> State:
    found = groups().get(name)
    if found is None:
        return {"there": False, "system": False, "ours": False, "gid": None, "members": []}
    made = find_record("made", f"group {name}")
    ours = made is not None and made["gid"] in (None, found.gid)
    members = sorted({*found.members, *(each.name for each in accounts().values() if each.gid == found.gid)})
    return {"there": True, "system": found.gid < SYSTEM_IDS, "ours": ours, "gid": found.gid, "members": members}


@changes("LinuxGroup", "there", "system")
def change_linux_group(key: Key, desired: State, how: State) -> None:
    name = key["group"]
    before = linux_group(name)
    if desired.get("there") is False:
        remove_group(name, before)
    elif before["there"]:
        raise wrong_state(f"Group {name} is there already, with the number {before['gid']}, which it keeps.")
    elif desired.get("there"):
        make_group(name, ("--system",) if desired.get("system") else ())


def make_group(name: str, options: tuple[str, ...]) -> None:
    # Recorded before the change, so that the group is known to be ours even if the machine goes down meanwhile.
    write_record("made", f"group {name}", {"name": name, "gid": None})
    try:
        run_checked("groupadd", *options, "--", name)
    except BaseException:
        remove_record("made", f"group {name}")
        raise
    ONCE.clear()
    write_record("made", f"group {name}", {"name": name, "gid": groups()[name].gid})


def remove_group(name: str, before: State) -> None:
    if not before["ours"]:
        raise not_owned_error(f"Group {name}")
    if before["members"]:
        message = "Group {} has {}.".format(name, ", ".join(before["members"]))
        raise AgentFault("Winhost.InUse", "ResourceBusy", message, "groupdel")
    run_checked("groupdel", "--", name)
    remove_record("made", f"group {name}")
