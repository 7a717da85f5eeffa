# Part of the agent, one call: what is so, and what is changed.
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
    entry,
    in_wsl,
    must,
    value,
)
from winhost.agent.linux_marks import add_mark
from winhost.agent.linux_unkept import as_kept, awaiting, same, set_for_good, set_revocably, undo_unkept

CHANGES_FROM = (3, 10)  # of Python, as Ubuntu 22.04 has it: nothing older is tried with changes


def instances(resource: str, key: Key | None) -> list[State]:
    known = entry(resource)
    if key is not None and (set(key) != set(known.key) or not all(isinstance(part, str) for part in key.values())):
        # Half a key would name several things; changing the first of them is not what anybody asked for.
        raise bad_request("The key is {}.".format(", ".join(sorted(known.key))))
    for part, text in (key or {}).items():
        known.key[part](text)
    found = [{"key": each, "state": as_kept(resource, each, state)} for each, state in known.get(key)]
    return [each for each in found if key is None or each["key"] == key]


def state_of(resource: str, key: Key) -> State | None:
    found = instances(resource, key)
    return found[0]["state"] if found else None


def differences(desired: State, state: State) -> State:
    unknown = sorted(set(desired) - set(state))
    if unknown:
        raise bad_request("There is no property {}.".format(", ".join(unknown)))
    return {
        name: {"expected": each, "found": state[name]} for name, each in desired.items() if not same(each, state[name])
    }


def restart_of(state: State | None) -> list[State]:
    """The system that has to restart before the change takes effect. Restarting a distro's would restart Windows, which
    is not ours.
    """
    return [{"system": "host"}] if state and state.get("restart_due") is True and not in_wsl() else []


def get_answer(call: State) -> State:
    if call.get("key") is None:
        return {"ok": True, "instances": instances(call["resource"], None)}
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
    known = entry(resource)
    drift = differences(call.get("expect") or {}, before)
    if drift:
        return {"ok": False, "drift": drift, "before": before}
    missing = {name: desired[name] for name in differences(desired, before)}
    if not missing:
        if awaiting(resource, key):
            undo_unkept()  # as it was found is what is wanted now
        return {"ok": True, "before": before, "after": before, "restart": []}
    foreign = sorted(set(missing) - set(known.sets))
    if foreign:
        raise bad_request("{} cannot be set.".format(", ".join(foreign)))
    mark = (call.get("how") or {}).get("mark")
    try:
        if mark:
            add_mark(mark)
        (set_revocably if known.cuts(key) else set_for_good)(call, before, missing)
    except Exception as error:  # noqa: BLE001 - with what it left behind
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
    if entry(call["resource"]).set is None:
        raise bad_request("{} cannot be asked to set.".format(call["resource"]))
    if call.get("key") is None or call.get("desired") is None:
        raise bad_request("A set says of what, and what it wants.")
    before = state_of(call["resource"], call["key"])
    if before is None:
        raise AgentFault("Winhost.NotFound", "ObjectNotFound", "There is no such {}.".format(call["resource"]))
    return before


BOOT = "LinuxBoot"


def restart_answer(call: State) -> State:
    """It goes down at once, and this answer may be lost with it."""
    if call.get("resource") != BOOT or in_wsl():
        raise bad_request("Only a machine of its own can be asked to restart.")
    must("systemctl", "--no-block", "reboot", within=30)
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
