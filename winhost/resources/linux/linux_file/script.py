# key {path: text}   state {text: text | null, link: text | null, mode: text | null, owner: text | null}
from __future__ import annotations

import re
import stat
from pathlib import Path

from winhost.agent.linux_agent import (
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
    put,
    put_link,
    reads,
    remove,
    status,
    value,
    wrong_place,
)

# Only these are written and read: other files may hold secrets.
FILES = ("/etc/apt/apt.conf.d/52winhost", "/etc/docker/daemon.json", "/etc/resolv.conf", "/etc/wsl.conf")
FOLDERS = ("/etc/cdi", "/etc/ssh/sshd_config.d", "/etc/systemd/network", "/etc/systemd/system")
NAMED = re.compile(r"(?:[a-zA-Z0-9@_-][a-zA-Z0-9@._-]*\.d/)?[a-zA-Z0-9_-][a-zA-Z0-9@._-]*")
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
    if path in FILES or (folder and NAMED.fullmatch(path[len(folder) + 1 :]) and ".." not in path):
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


@changes("LinuxFile", "text", "link", "mode", "owner")
def change_linux_file(key: Key, desired: State, how: State) -> None:
    path = writable(key["path"])
    before = linux_file(path)
    after = dict(before, **desired)
    if isinstance(before["text"], dict):
        raise wrong_place(f"{path} cannot be read, so it could not be put back.")
    if after["text"] is not None and after["link"] is not None:
        raise wrong_place("{} is a link to {}; what replaces it says so: link null.".format(path, before["link"]))
    write_file(path, after)
    if path.startswith("/etc/systemd/system/") and Path("/run/systemd/system").is_dir():
        must("systemctl", "daemon-reload")
    if path.startswith("/etc/ssh/"):
        # A mistake here would end SSH access, but not before the next start of sshd.
        try:
            must("sshd", "-t")
        except BaseException:
            write_file(path, before)
            raise


def write_file(path: str, state: State) -> None:
    if state["link"] is not None:
        put_link(path, matching(r"[^\0]+", state["link"], "where a link leads"))
    elif state["text"] is not None:
        text = matching(r"(?s).*", state["text"], "text")
        mode = matching(r"0?[0-7]{3}", state["mode"] or "0644", "a mode as 0644")
        owner = matching(r"[^:]+:[^:]+", state["owner"] or "root:root", "an owner as root:root")
        put(path, text, int(mode, 8), owner)
    else:
        remove(path)
