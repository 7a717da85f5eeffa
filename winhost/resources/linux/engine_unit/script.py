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
    """It exits with 1 where there are none."""
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
    after["active"] = desired.get("active", stays_active(dict(before, active=before["active"] or tried), after))
    if after["text"] is None and (after["enabled"] or after["active"]):
        raise bad_request(f"{name} cannot start without a text.")
    other = after["text"] != before["text"]
    if other or not after["active"]:
        with waiting(f"stopping {name}"):
            run("systemctl", "stop", "--", name, within=300)
    if other and after["text"] is not None:
        write_engine(name, after["text"], how)
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
    begin_engine(name, after, how)


def remove_cache(name: str) -> None:
    """Compiled graphs, of a user that is no more, and the image of its process. `systemctl clean` does not for a unit
    that failed.
    """
    folder = name[: -len(".service")]
    image = f"/var/lib/winhost-images/{folder[len('winhost-engine-') :]}"
    for path in (f"/var/cache/private/{folder}", f"/var/cache/{folder}", image):
        with suppress(OSError):  # not there, or the link to it
            shutil.rmtree(path)
    with suppress(OSError):
        remove(f"/var/cache/{folder}")


def stays_active(before: State, after: State) -> bool:
    """One that does not start with the machine is the gateway's to start, when its turn comes. One that begins to do so
    starts now: a rollback gives it back its place. So does one that failed: its new text may be the old one, by a
    rollback. One that somebody stopped stays stopped.
    """
    was = before["active"] or not before["enabled"]
    return bool(was and after["enabled"] and after["text"] is not None)


def write_engine(name: str, desired: str, how: State) -> None:
    text = check_text(r"(?s).+", desired, "the text of a unit")
    if not how.get("undoing"):
        validate(engine_file(name), text)
    put(engine_file(name), text)


def begin_engine(name: str, after: State, how: State) -> None:
    if after["enabled"]:
        run_checked("systemctl", "enable", "--", name)
    if after["active"]:
        with waiting(f"starting {name}: it has started when the engine answers"):
            start(name, {"within": seconds(how, 3600)})
