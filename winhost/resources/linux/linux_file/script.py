# key {path: text}   state {text: text | null, link: text | null, mode: text | null, owner: text | null}
from __future__ import annotations

import json
import re
import secrets
import shutil
import stat
from pathlib import Path

from winhost.agent.linux_agent import (
    AgentFault,
    Found,
    Key,
    State,
    bad_request,
    changes,
    content,
    link,
    matching,
    must,
    owner_of,
    place_of,
    put,
    put_link,
    reads,
    remove,
    run,
    status,
    systemd_runs,
    value,
    wrong_place,
)

# Only these are written and read: other files may hold secrets.
FILES = ("/etc/apt/apt.conf.d/52winhost", "/etc/docker/daemon.json", "/etc/resolv.conf", "/etc/wsl.conf")
FOLDERS = ("/etc/cdi", "/etc/ssh/sshd_config.d", "/etc/systemd/network", "/etc/systemd/system")
NAMED = re.compile(r"(?:[a-zA-Z0-9@_-][a-zA-Z0-9@._-]*\.d/)?[a-zA-Z0-9_-][a-zA-Z0-9@._-]*")
# Where those of others hold secrets, or are nobody else's business.
OURS = re.compile(
    r"/etc/(?:sudoers\.d/[0-9]*-?winhost[a-z0-9-]*|netplan/[0-9]*-?winhost[a-z0-9-]*\.yaml"
    r"|nftables\.d/[0-9]*-?winhost[a-z0-9-]*\.nft)"
)
CHECKS = "/run/winhost"
KNOWN_FILES = (
    *FILES,
    "/etc/ssh/sshd_config.d/10-winhost.conf",
    "/etc/systemd/network/10-winhost.network",
    "/etc/systemd/system/ssh.service.d/winhost.conf",
    "/etc/systemd/system/winhost-cdi.path",
    "/etc/systemd/system/winhost-cdi.service",
)


@reads("LinuxFile", "path")
def linux_files(key: Key | None) -> Found:
    for path in [key["path"]] if key else KNOWN_FILES:
        yield {"path": path}, linux_file(writable(path))


def writable(path: str) -> str:
    """The path, if it is one of those that winhost writes."""
    folder = next((each for each in FOLDERS if path.startswith(each + "/")), None)
    if (
        path in FILES
        or OURS.fullmatch(path)
        or (folder and NAMED.fullmatch(path[len(folder) + 1 :]) and ".." not in path)
    ):
        return path
    raise bad_request(f"{path} is not among the files that winhost writes.")


def linux_file(path: str) -> State:
    found = status(path)
    if found is None:
        return {"text": None, "link": None, "mode": None, "owner": None}
    if stat.S_ISLNK(found.st_mode):
        return {"text": None, "link": link(path), "mode": None, "owner": None}
    text = value(lambda: content(path).decode("utf-8"))
    return {"text": text, "link": None, "mode": f"{stat.S_IMODE(found.st_mode):04o}", "owner": owner_of(found)}


def cuts_ssh(key: Key) -> bool:
    if key["path"].startswith("/etc/ssh/"):
        return systemd_runs()  # without it nothing makes sshd read its files before its next start
    return key["path"].startswith(("/etc/sudoers.d/", "/etc/netplan/"))


@changes("LinuxFile", "text", "link", "mode", "owner", cuts=cuts_ssh)
def change_linux_file(key: Key, desired: State, how: State) -> None:
    path = writable(key["path"])
    before = linux_file(path)
    after = dict(before, **desired)
    if isinstance(before["text"], dict):
        raise wrong_place(f"{path} cannot be read, so it could not be put back.")
    if after["text"] is not None and after["link"] is not None:
        raise wrong_place("{} is a link to {}; what replaces it says so: link null.".format(path, before["link"]))
    if "text" in desired and after["text"] is not None and not how.get("undoing"):
        validate(path, matching(r"(?s).*", after["text"], "text"))
    write_file(path, after)
    take_effect(path)


def take_effect(path: str) -> None:
    if not systemd_runs():
        return
    if path.startswith(("/etc/systemd/system/", "/etc/ssh/")):
        must("systemctl", "daemon-reload")  # it also renews the socket of sshd
    if path.startswith("/etc/ssh/"):
        must("systemctl", "try-restart", "ssh.socket")
        must("systemctl", "try-reload-or-restart", "ssh.service")
    if path.startswith("/etc/netplan/"):
        must("netplan", "apply", within=120)


# ---- the new text, before it takes the place of the old one


def validate(path: str, text: str) -> None:
    """By the program that will read it. Raises AgentFault with what that says."""
    validators = (
        ("/etc/ssh/sshd_config.d/", validate_sshd),
        ("/etc/sudoers.d/", validate_sudoers),
        ("/etc/netplan/", validate_netplan),
        ("/etc/nftables.d/", validate_nft),
        ("/etc/systemd/system/", validate_unit),
        ("/etc/docker/daemon.json", validate_json),
    )
    folder = f"{CHECKS}/check-{secrets.token_hex(8)}"
    for start, validator in validators:
        if path.startswith(start):
            try:
                validator(path, text, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def invalid(path: str, program: str, said: str, folder: str) -> AgentFault:
    message = f"{program} refuses the new {path}: {said.replace(folder, '').strip()[-1000:]}"
    return AgentFault("Winhost.NotValid", "InvalidData", message, program)


def copy_beside(path: str, text: str, folder: str) -> None:
    """The files of a folder as they are, with the new one among them."""
    for each in Path(path).parent.glob("*"):
        found = status(str(each))
        if found is not None and stat.S_ISREG(found.st_mode):
            put(f"{folder}/{each.name}", content(str(each)).decode("utf-8", "replace"), 0o600)
    put(f"{folder}/{Path(path).name}", text, 0o600)


def validate_sshd(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/sshd_config.d")
    main = content("/etc/ssh/sshd_config").decode("utf-8", "replace")
    inside = re.sub(r"(?:/etc/ssh/)?sshd_config\.d/", f"{folder}/sshd_config.d/", main)
    put(f"{folder}/sshd_config", inside, 0o600)
    done = run("sshd", "-t", "-f", f"{folder}/sshd_config")
    if done.code != 0:
        raise invalid(path, "sshd", done.errors, folder)


def validate_sudoers(path: str, text: str, folder: str) -> None:
    put(f"{folder}/sudoers", text, 0o440)
    done = run("visudo", "-c", "-f", f"{folder}/sudoers")
    if done.code != 0:
        raise invalid(path, "visudo", done.errors + done.output, folder)


def validate_netplan(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/etc/netplan")
    done = run("netplan", "generate", "--root-dir", folder)
    if done.code != 0:
        raise invalid(path, "netplan", done.errors + done.output, folder)


def validate_nft(path: str, text: str, folder: str) -> None:
    put(f"{folder}/rules.nft", text, 0o600)
    done = run("nft", "-c", "-f", f"{folder}/rules.nft")
    if done.code != 0:
        raise invalid(path, "nft", done.errors, folder)


def validate_unit(path: str, text: str, folder: str) -> None:
    """What systemd would ignore is refused, too; a program that a later step brings is none of its business."""
    unit, _, drop_in = path[len("/etc/systemd/system/") :].partition("/")
    unit = unit[: -len(".d")] if drop_in else unit
    if place_of("systemd-analyze") is None or not unit.endswith((".service", ".socket", ".path", ".timer", ".mount")):
        return
    # A template is read as one of its instances.
    unit = unit.replace("@.", "@winhost.")
    if drop_in:
        put(f"{folder}/{unit}", fragment(unit))
    put(f"{folder}/{unit}.d/{drop_in}" if drop_in else f"{folder}/{unit}", text)
    said = run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}").errors.splitlines()
    faults = [line for line in said if re.search(rf"{re.escape(folder)}\S*:[0-9]+: |bad unit file setting", line)]
    if faults:
        raise invalid(path, "systemd-analyze", "; ".join(said), folder)


def fragment(unit: str) -> str:
    """The file of a unit, or what has no fault where there is none yet."""
    found = run("systemctl", "show", "--property=FragmentPath", "--value", "--", unit).output.strip()
    if found.startswith(("/usr/lib/", "/lib/", "/etc/", "/run/")) and Path(found).is_file():
        return content(str(Path(found).resolve())).decode("utf-8", "replace")
    return "[Service]\nExecStart=/bin/true\n" if unit.endswith(".service") else "[Unit]\n"


def validate_json(path: str, text: str, folder: str) -> None:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise invalid(path, "json", str(error), folder) from None
    if not isinstance(found, dict):
        raise invalid(path, "json", "it is no object", folder)


def write_file(path: str, state: State) -> None:
    if state["link"] is not None:
        put_link(path, matching(r"[^\0]+", state["link"], "where a link leads"))
    elif state["text"] is not None:
        text = matching(r"(?s).*", state["text"], "text")
        usual = "0440" if path.startswith("/etc/sudoers.d/") else "0600" if path.startswith("/etc/netplan/") else "0644"
        mode = matching(r"0?[0-7]{3}", state["mode"] or usual, "a mode as 0644")
        owner = matching(r"[^:]+:[^:]+", state["owner"] or "root:root", "an owner as root:root")
        put(path, text, int(mode, 8), owner)
    else:
        remove(path)
