# key {pointer: text}   state {value: json}
from __future__ import annotations

from winhost.agent.linux_head import *

DAEMON_JSON = "/etc/docker/daemon.json"
DAEMON_UNIT = "docker.service"
DAEMON_FOUND = STATE_FOLDER + "/docker/found.json"  # the text of the file before winhost changed it
KNOWN_POINTERS = ("/default-runtime", "/features/cdi", "/runtimes/nvidia")


@reads("DockerSetting", pointer=ANY_TEXT)
def docker_settings(key: Key | None) -> Found:
    daemon = daemon_json()
    for pointer in [key["pointer"]] if key else KNOWN_POINTERS:
        found: Any = daemon
        for name in names_of(pointer):
            found = found.get(name) if isinstance(found, dict) else None
        yield {"pointer": pointer}, {"value": found}


def names_of(pointer: str) -> list[str]:
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
    put_at(daemon, names_of(key["pointer"]), desired["value"])
    running = run("systemctl", "is-active", "--quiet", DAEMON_UNIT).code == 0
    if running:
        refuse_to_end_containers(how)
    before = read_text(DAEMON_JSON)
    try:
        put_or_remove(DAEMON_JSON, as_found(daemon, before))
        check_daemon_json()
        if running:
            run_checked("systemctl", "restart", DAEMON_UNIT, within=seconds(how, 120))
    except BaseException:
        put_or_remove(DAEMON_JSON, before)
        if running:
            run("systemctl", "reset-failed", DAEMON_UNIT)
            run("systemctl", "restart", DAEMON_UNIT, within=seconds(how, 120))
        raise


def put_at(daemon: dict[str, Any], names: list[str], desired: Any) -> None:
    """Objects are made on the way, and taken away where nothing is left in them."""
    above, (*folders, last) = [daemon], names
    for name in folders:
        inner = above[-1].setdefault(name, {})
        if not isinstance(inner, dict):
            raise wrong_state(f"{name} in {DAEMON_JSON} is no object.")
        above.append(inner)
    if desired is not None:
        above[-1][last] = desired
        return
    above[-1].pop(last, None)
    for outer, name in reversed(list(zip(above, folders))):
        if not outer[name]:
            del outer[name]


def as_found(daemon: dict[str, Any], before: str | None) -> str | None:
    """The text of the file: as it was found, byte for byte, where it says the same again."""
    found = json.loads(read_text(DAEMON_FOUND) or "null") or {"text": before, "ours": before}
    if found["ours"] != before:  # somebody changed it since
        found["text"] = before
    same_again = json.loads((found["text"] or "").strip() or "{}") == daemon
    found["ours"] = found["text"] if same_again else json.dumps(daemon, indent=2) + "\n"
    put_or_remove(DAEMON_FOUND, None if same_again else json.dumps(found), 0o600)
    text: str | None = found["ours"]
    return text


def check_daemon_json() -> None:
    """Validate the file with dockerd itself, from version 23 on; an older one answers that it knows no --validate."""
    if find_program("dockerd") is None or file_status(DAEMON_JSON) is None:
        return
    done = run("dockerd", "--validate", "--config-file=" + DAEMON_JSON)
    if done.code != 0 and "unknown flag" not in done.errors:
        raise bad_request("dockerd refuses it: " + done.errors.strip()[-500:])


def refuse_to_end_containers(how: State) -> None:
    if "containers" in how.get("accept", ()):
        return
    names = run_checked("docker", "ps", "--format={{.Names}}").split()
    if names:
        message = "Restarting Docker would end {}.".format(", ".join(names[:10]))
        raise AgentFault("Winhost.EndsContainers", "ResourceBusy", message, "docker")
