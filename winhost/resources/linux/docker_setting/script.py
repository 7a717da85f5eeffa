# key {pointer: text}   state {value: json}
from __future__ import annotations

from winhost.agent.linux_head import *

DAEMON_JSON = "/etc/docker/daemon.json"
DAEMON_UNIT = "docker.service"
ORIGINAL_DAEMON = STATE_FOLDER + "/docker/found.json"  # the text of the file before winhost changed it
KNOWN_POINTERS = ("/default-runtime", "/features/cdi", "/runtimes/nvidia")


@reads("DockerSetting", pointer=ANY_TEXT)
def docker_settings(key: Key | None) -> Found:
    daemon = daemon_json()
    for pointer in [key["pointer"]] if key else KNOWN_POINTERS:
        found: Any = daemon
        for name in split_pointer(pointer):
            found = found.get(name) if isinstance(found, dict) else None
        yield {"pointer": pointer}, {"value": found}


def split_pointer(pointer: str) -> list[str]:
    says = "a JSON pointer to a setting, as /features/cdi"
    names = check_text(r"(/([^/~\0]|~[01])+)+", pointer, says)[1:].split("/")
    return [name.replace("~1", "/").replace("~0", "~") for name in names]


def daemon_json() -> dict[str, Any]:
    with suppress(ValueError):
        daemon = json.loads((read_text(DAEMON_JSON) or "").strip() or "{}")
        if isinstance(daemon, dict):
            return daemon
    raise AgentFault("Winhost.NotDecodable", "InvalidData", f"{DAEMON_JSON} is no JSON object; it is left alone.")


@changes("DockerSetting", "value")
def change_docker_setting(key: Key, desired: State, how: State) -> None:
    if find_program("dockerd") is None and file_status("/snap/bin/docker") is not None:
        message = "Docker was installed as a snap, which reads other settings. Remove the snap, or use its own."
        raise AgentFault("Winhost.OtherEngine", "ResourceExists", message, "docker")
    daemon = daemon_json()
    set_value(daemon, split_pointer(key["pointer"]), desired["value"])
    running = run("systemctl", "is-active", "--quiet", DAEMON_UNIT).code == 0
    if running:
        refuse_to_stop_containers(how)
    before = read_text(DAEMON_JSON)
    try:
        put_or_remove(DAEMON_JSON, restore_original_text(daemon, before))
        check_daemon_json()
        if running:
            run_checked("systemctl", "restart", DAEMON_UNIT, within=seconds(how, 120))
    except BaseException:
        put_or_remove(DAEMON_JSON, before)
        if running:
            run("systemctl", "reset-failed", DAEMON_UNIT)
            run("systemctl", "restart", DAEMON_UNIT, within=seconds(how, 120))
        raise


def set_value(daemon: dict[str, Any], names: list[str], desired: Any) -> None:
    """Set or remove a value. Missing parent objects are created, and parents that become empty are removed."""
    parents, (*folders, last) = [daemon], names
    for name in folders:
        inner = parents[-1].setdefault(name, {})
        if not isinstance(inner, dict):
            raise wrong_state(f"{name} in {DAEMON_JSON} is no object.")
        parents.append(inner)
    if desired is not None:
        parents[-1][last] = desired
        return
    parents[-1].pop(last, None)
    for outer, name in reversed(list(zip(parents, folders))):
        if not outer[name]:
            del outer[name]


def restore_original_text(daemon: dict[str, Any], before: str | None) -> str | None:
    """Return the new text of the file. If its values are the original ones again, this is the original text."""
    found = json.loads(read_text(ORIGINAL_DAEMON) or "null") or {"text": before, "ours": before}
    if found["ours"] != before:  # somebody changed it since
        found["text"] = before
    same_again = json.loads((found["text"] or "").strip() or "{}") == daemon
    found["ours"] = found["text"] if same_again else json.dumps(daemon, indent=2) + "\n"
    put_or_remove(ORIGINAL_DAEMON, None if same_again else json.dumps(found), 0o600)
    text: str | None = found["ours"]
    return text


def check_daemon_json() -> None:
    """Validate the file with dockerd, if its version is 23 or later and therefore has --validate."""
    if find_program("dockerd") is None or file_status(DAEMON_JSON) is None:
        return
    done = run("dockerd", "--validate", "--config-file=" + DAEMON_JSON)
    if done.code != 0 and "unknown flag" not in done.errors:
        raise bad_request("dockerd refuses it: " + done.errors.strip()[-500:])


def refuse_to_stop_containers(how: State) -> None:
    if "containers" in how.get("accept", ()):
        return
    names = run_checked("docker", "ps", "--format={{.Names}}").split()
    if names:
        message = "Restarting Docker would end {}.".format(", ".join(names[:10]))
        raise AgentFault("Winhost.EndsContainers", "ResourceBusy", message, "docker")
