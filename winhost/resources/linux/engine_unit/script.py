# key {unit: text}   state {text: text | null, enabled: bool, active: bool, failed: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

ENGINE_UNITS = "/usr/local/lib/systemd/system"


@reads("EngineUnit", unit=text_check(r"winhost-engine-[a-z0-9][a-z0-9-]{0,63}\.service", "the unit of an engine"))
def engine_units(key: Key | None) -> Found:
    if not systemd_runs():
        raise NotThereYet("LinuxSystem")
    require_engines_group()
    for name in [key["unit"]] if key else listed_engines():
        yield {"unit": name}, engine_unit(name)


def listed_engines() -> list[str]:
    # The exit status is 1 if there are none.
    done = run("systemctl", "list-unit-files", "--no-legend", "--no-pager", "--", "winhost-engine-*.service")
    return [line.split()[0] for line in done.output.splitlines() if line.strip()]


def engine_file(name: str) -> str:
    return f"{ENGINE_UNITS}/{name}"


def engine_unit(name: str) -> State:
    properties = unit_properties(name)
    return {
        "text": value(lambda: read_text(engine_file(name))),
        "enabled": properties["UnitFileState"] == "enabled",
        "active": properties["ActiveState"] in ("active", "reloading"),
        "failed": properties["ActiveState"] == "failed",
    }


@changes("EngineUnit", "text", "enabled", "active")
def change_engine_unit(key: Key, desired: State, how: State) -> None:
    name = key["unit"]
    before = engine_unit(name)
    after = dict(before, **desired)
    tried = unit_properties(name)["ActiveState"] in ("activating", "failed")
    after["active"] = desired.get("active", becomes_active(dict(before, active=before["active"] or tried), after))
    if after["text"] is None and (after["enabled"] or after["active"]):
        raise bad_request(f"{name} cannot start without a text.")
    other = after["text"] != before["text"]
    if other or not after["active"]:
        with waiting(f"stopping {name}"):
            run("systemctl", "stop", "--", name, within=300)
    if other and after["text"] is not None:
        write_engine_unit(name, after["text"], how)
    if before["enabled"] and not after["enabled"]:
        run_checked("systemctl", "disable", "--", name)
    if other and after["text"] is None:
        remove(engine_file(name))
    run_checked("systemctl", "daemon-reload")
    if other and not after["active"]:
        run("systemctl", "stop", "--", name, within=300)  # the gateway may have started what was there before
    if other and after["text"] is None:
        remove_cache(name)
    run("systemctl", "reset-failed", "--", name)
    start_engine(name, after, how)


def remove_cache(name: str) -> None:
    """Remove the unit's caches of compiled graphs, and the image of its process.

    `systemctl clean` refuses failed units.
    """
    folder = name[: -len(".service")]
    image = f"/var/lib/winhost-images/{folder[len('winhost-engine-') :]}"
    for path in (f"/var/cache/private/{folder}", f"/var/cache/{folder}", image):
        with suppress(OSError):  # not there, or the link to it
            shutil.rmtree(path)
    with suppress(OSError):
        remove(f"/var/cache/{folder}")


def becomes_active(before: State, after: State) -> bool:
    """Tell whether a unit is to be active after a change that does not say so.

    A unit that is not enabled is started by the gateway when needed. A unit that becomes enabled, or that has failed,
    starts now: in a rollback, this restores its former state. An enabled unit that somebody stopped stays stopped.
    """
    starts = before["active"] or not before["enabled"]
    return bool(starts and after["enabled"] and after["text"] is not None)


def write_engine_unit(name: str, desired: str, how: State) -> None:
    text = check_text(r"(?s).+", desired, "the text of a unit")
    if not how.get("undoing"):
        validate(engine_file(name), text)
    put(engine_file(name), text)


def start_engine(name: str, after: State, how: State) -> None:
    if after["enabled"]:
        run_checked("systemctl", "enable", "--", name)
    if after["active"]:
        with waiting(f"starting {name}: it has started when the engine answers"):
            start(name, {"within": seconds(how, 3600)})
