# Part of the agent: one call, which reads or changes a resource.
from __future__ import annotations

import sys

from winhost.agent.linux_agent import (
    ONCE,
    WARNINGS,
    AgentFault,
    Key,
    NotThereYet,
    State,
    bad_request,
    describe_error,
    find_resource,
    in_wsl,
    run_checked,
    value,
)
from winhost.agent.linux_marks import add_mark
from winhost.agent.linux_revocable import (
    apply_change,
    apply_revocably,
    confirmed_state,
    equals_json,
    find_pending_change,
    undo_unconfirmed,
)

CHANGES_FROM = (3, 10)  # of Python, as in Ubuntu 22.04: changes are not tested with older versions


def read_instances(resource: str, key: Key | None) -> list[State]:
    known = find_resource(resource)
    if key is not None and (set(key) != set(known.key) or not all(isinstance(part, str) for part in key.values())):
        # An incomplete key names several instances, and the first of them may not be the one that is meant.
        raise bad_request("The key is {}.".format(", ".join(sorted(known.key))))
    for part, text in (key or {}).items():
        known.key[part](text)
    found = [{"key": each, "state": confirmed_state(resource, each, state)} for each, state in known.get(key)]
    return [each for each in found if key is None or each["key"] == key]


def state_of(resource: str, key: Key) -> State | None:
    found = read_instances(resource, key)
    return found[0]["state"] if found else None


def differences(desired: State, state: State) -> State:
    unknown = sorted(set(desired) - set(state))
    if unknown:
        raise bad_request("There is no property {}.".format(", ".join(unknown)))
    return {
        name: {"expected": each, "found": state[name]}
        for name, each in desired.items()
        if not equals_json(each, state[name])
    }


def restart_of(state: State | None) -> list[State]:
    """Return the system that has to restart before the change takes effect; none for a distro of WSL, because its
    restart would be one of Windows.
    """
    return [{"system": "host"}] if state and state.get("restart_due") is True and not in_wsl() else []


def get_answer(call: State) -> State:
    if call.get("key") is None:
        return {"ok": True, "instances": read_instances(call["resource"], None)}
    return {"ok": True, "state": state_of(call["resource"], call["key"])}


def refuse_old_python(version: tuple[int, int, int]) -> None:
    if version < CHANGES_FROM:
        found, oldest = (".".join(map(str, each)) for each in (version, CHANGES_FROM))
        message = f"Python {found} can read this machine. A change needs Python {oldest} or later: upgrade the distro."
        raise AgentFault("Winhost.PythonTooOld", "NotInstalled", message)


def set_answer(call: State) -> State:
    refuse_old_python(sys.version_info[:3])
    ONCE.clear()
    before = state_before(call)
    resource, key, desired = call["resource"], call["key"], call["desired"]
    known = find_resource(resource)
    drift = differences(call.get("expect") or {}, before)
    if drift:
        return {"ok": False, "drift": drift, "before": before}
    missing = {name: desired[name] for name in differences(desired, before)}
    if not missing:
        if find_pending_change(resource, key):
            undo_unconfirmed()  # the state before the pending change is desired now
        return {"ok": True, "before": before, "after": before, "restart": []}
    foreign = sorted(set(missing) - set(known.sets))
    if foreign:
        raise bad_request("{} cannot be set.".format(", ".join(foreign)))
    mark = (call.get("how") or {}).get("mark")
    try:
        if mark:
            add_mark(mark)
        (apply_revocably if known.cuts(key) else apply_change)(call, before, missing)
    except Exception as error:  # noqa: BLE001 - reported with the state after it
        ONCE.clear()
        return {
            "ok": False,
            "error": describe_error(error),
            "before": before,
            "after": value(lambda: state_of(resource, key)),
        }
    ONCE.clear()
    after = state_of(resource, key)
    return {"ok": True, "before": before, "after": after, "restart": restart_of(after)}


def state_before(call: State) -> State:
    if find_resource(call["resource"]).set is None:
        raise bad_request("{} cannot be asked to set.".format(call["resource"]))
    if call.get("key") is None or call.get("desired") is None:
        raise bad_request("A set needs a key and desired properties.")
    before = state_of(call["resource"], call["key"])
    if before is None:
        raise AgentFault("Winhost.NotFound", "ObjectNotFound", "There is no such {}.".format(call["resource"]))
    return before


BOOT = "LinuxBoot"


def restart_answer(call: State) -> State:
    """Restart the machine. It goes down at once, and this answer may be lost."""
    if call.get("resource") != BOOT or in_wsl():
        raise bad_request("Only a machine that is no distro of WSL can be restarted.")
    run_checked("systemctl", "--no-block", "reboot", within=30)
    return {"ok": True, "restart": [{"system": "host"}]}


VERBS = {"get": get_answer, "set": set_answer, "restart": restart_answer}


def answer(call: State) -> State:
    del WARNINGS[:]
    try:
        if call.get("verb") not in VERBS:
            raise bad_request("The verb is get, set or restart.")
        given = VERBS[call["verb"]](call)
    except NotThereYet as unavailable:
        return {"ok": False, "unavailable": str(unavailable)}
    except Exception as error:  # noqa: BLE001 - errors are data
        given = {"ok": False, "error": describe_error(error)}
    return dict(given, warnings=list(WARNINGS))
