# key {unit: text}   state {loaded: bool, enabled: text, active: bool, failed: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

KNOWN_UNITS = (
    "containerd.service",
    "docker.service",
    "nvidia-cdi-refresh.service",
    "nvidia-fabricmanager.service",
    "ssh.service",
    "ssh.socket",
    "systemd-networkd.service",
    "systemd-networkd-wait-online.service",
    "systemd-resolved.service",
    "winhost-cdi.path",
    "winhost-cdi.service",
)


UNIT_NAME = r"[A-Za-z0-9_][A-Za-z0-9:_.@\\-]*\.(?:mount|path|service|socket|target|timer)"


@reads("SystemdUnit", unit=text_check(UNIT_NAME, "the name of a unit"))
def systemd_units(key: Key | None) -> Found:
    if not systemd_runs():
        raise NotThereYet("LinuxSystem")
    names = [key["unit"]] if key else KNOWN_UNITS
    for name, properties in zip(names, properties_of(names)):
        yield {"unit": name}, unit_state(name, properties)


def unit_state(name: str, properties: dict[str, str]) -> State:
    state: State = {
        "loaded": properties["LoadState"] == "loaded",
        "enabled": properties["UnitFileState"] or properties["LoadState"],
        "active": properties["ActiveState"] in ("active", "reloading"),
        "failed": properties["ActiveState"] == "failed",
    }
    if properties["LoadState"] == "not-found":
        # The initial state depends on what provides the unit: a package may enable and start it.
        waits = {"unavailable": "LinuxFile" if name.startswith("winhost-") else "DebianPackage"}
        return dict(state, enabled=waits, active=state["active"] or waits)
    return state


@changes("SystemdUnit", "enabled", "active")
def change_systemd_unit(key: Key, desired: State, how: State) -> None:
    unit = key["unit"]
    before = unit_properties(unit)
    if before["NeedDaemonReload"] == "yes" or before["LoadState"] != "loaded":
        run_checked("systemctl", "daemon-reload")
    if "enabled" in desired:
        enable(unit, desired["enabled"], before["UnitFileState"])
    if desired.get("active") is True:
        if before["ActiveState"] == "failed":
            run_checked("systemctl", "reset-failed", "--", unit)
        start(unit, how)
    if desired.get("active") is False:
        run_checked("systemctl", "stop", "--", unit, within=seconds(how, 120))


def enable(unit: str, desired: str, found: str) -> None:
    """Enable, disable or mask a unit. For any other state, such as static, it is only unmasked."""
    if desired == "masked":
        run_checked("systemctl", "mask", "--", unit)
        return
    if found == "masked":
        run_checked("systemctl", "unmask", "--", unit)
    if desired == "enabled":
        run_checked("systemctl", "enable", "--", unit)
    if desired == "disabled":
        run_checked("systemctl", "disable", "--", unit)
