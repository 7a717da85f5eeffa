# key {path: text}   state {text: text | null, link: text | null, mode: text | null, owner: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

GATEWAY_UNIT, BOOT_TEST = "winhost-gateway.service", "winhost-boot-test.service"
# Files that no plan contains: changed keys, and the usage of keys. They are removed with the unit of the gateway.
GATEWAY_STATE_FILES = ("/etc/winhost/gateway-keys", "/var/lib/winhost-gateway")
GATEWAY_STATE_FOLDER = "/var/lib/private/winhost-gateway"
K3S_CONFIG, K3S_UNIT = "/etc/rancher/k3s/config.yaml", "winhost-k3s.service"
CLOUD_INIT_OFF = "/etc/cloud/cloud-init.disabled"
# Only these files are written and read, because others may contain secrets.
FILES = (
    "/etc/apt/apt.conf.d/52winhost",
    CLOUD_INIT_OFF,
    "/etc/docker/daemon.json",
    "/etc/resolv.conf",
    "/etc/wsl.conf",
)
FOLDERS = ("/etc/cdi", "/etc/ssh/sshd_config.d", "/etc/systemd/network", "/etc/systemd/system")
FILE_NAME = re.compile(r"(?:[a-zA-Z0-9@_-][a-zA-Z0-9@._-]*\.d/)?[a-zA-Z0-9_-][a-zA-Z0-9@._-]*")
# Files of winhost's own in folders where the files of others may contain secrets or are not to be read.
OWN_FILES = re.compile(
    r"/etc/(?:sudoers\.d/[0-9]*-?winhost[a-z0-9-]*|netplan/[0-9]*-?winhost[a-z0-9-]*\.yaml"
    r"|nftables\.d/[0-9]*-?winhost[a-z0-9-]*\.nft)"
    r"|/opt/winhost/gateway(?:-plain-http)?-[0-9a-f]{16}/(?:settings\.json|keys)"
    r"|/usr/local/lib/systemd/system/winhost-(?:(?:gateway|keeper|boot-test|kv-prune)\.service|kv-prune\.timer)"
    r"|/opt/winhost/kv-prune-[0-9a-f]{16}/prune_kv\.py"
    r"|/opt/winhost/engine-[a-z0-9][a-z0-9-]{0,63}-[0-9a-f]{16}/(?:compose\.yaml|ready\.py|process_image\.py)"
    r"|/opt/winhost/weights-[0-9a-f]{16}/winhost_weights\.dist-info/(?:METADATA|entry_points\.txt)"
    r"|/etc/winhost/serving\.json"
    r"|/etc/rancher/k3s/config\.yaml|/usr/local/lib/systemd/system/winhost-k3s\.service"
)
KNOWN_FILES = (
    *FILES,
    "/etc/ssh/sshd_config.d/10-winhost.conf",
    "/etc/systemd/network/10-winhost.network",
    "/etc/systemd/system/ssh.service.d/winhost.conf",
    "/etc/systemd/system/winhost-cdi.path",
    "/etc/systemd/system/winhost-cdi.service",
)


@reads("LinuxFile", path=lambda path: check_path(path))
def linux_files(key: Key | None) -> Found:
    for path in [key["path"]] if key else KNOWN_FILES:
        yield {"path": path}, linux_file(path)


def check_path(path: str) -> None:
    """Refuse a path that is not one of the files that winhost writes."""
    folder = next((each for each in FOLDERS if path.startswith(each + "/")), None)
    named = folder and FILE_NAME.fullmatch(path[len(folder) + 1 :]) and ".." not in path
    if not (named or path in FILES or OWN_FILES.fullmatch(path)):
        raise bad_request(f"{path} is not among the files that winhost writes.")


def linux_file(path: str) -> State:
    found = file_status(path)
    if found is None:
        return {"text": None, "link": None, "mode": None, "owner": None}
    if stat.S_ISLNK(found.st_mode):
        return {"text": None, "link": read_link(path), "mode": None, "owner": None}
    text = value(lambda: read_file(path).decode("utf-8"))
    return {"text": text, "link": None, "mode": f"{stat.S_IMODE(found.st_mode):04o}", "owner": owner_name(found)}


def cuts_ssh(key: Key) -> bool:
    if key["path"].startswith("/etc/ssh/"):
        return systemd_runs()  # otherwise sshd reads its files only when it starts
    return key["path"].startswith(("/etc/sudoers.d/", "/etc/netplan/"))


@changes("LinuxFile", "text", "link", "mode", "owner", cuts=cuts_ssh)
def change_linux_file(key: Key, desired: State, how: State) -> None:
    path = key["path"]
    before = linux_file(path)
    after = dict(before, **desired)
    if isinstance(before["text"], dict):
        raise wrong_state(f"{path} cannot be read, so it could not be put back.")
    if after["text"] is not None and after["link"] is not None:
        raise wrong_state("{} is a link to {}; what replaces it says so: link null.".format(path, before["link"]))
    if path == CLOUD_INIT_OFF:
        # cloud-init still completes the current boot, for example by updating package lists. Wait for that.
        wait_while(is_first_boot, "cloud-init", how)
    if "text" in desired and after["text"] is not None and not how.get("undoing"):
        validate(path, check_text(r"(?s).*", after["text"], "text"))
    k3s = path == K3S_CONFIG and file_status(f"/usr/local/lib/systemd/system/{K3S_UNIT}") is not None
    unit = K3S_UNIT if k3s else path.rpartition("/")[2]  # k3s reads its settings when it starts
    if unit == BOOT_TEST and after["text"] is None and systemd_runs():
        run("systemctl", "stop", unit)  # it remains active after it has ended, with its result
    write_file(path, after)
    reload_services(path)
    if path == f"/usr/local/lib/systemd/system/{GATEWAY_UNIT}" and after["text"] is None:
        remove_keys()
    ours = (GATEWAY_UNIT, "winhost-keeper.service", K3S_UNIT)
    if unit in ours and after["text"] is not None and systemd_runs():
        run_checked("systemctl", "try-restart", unit, within=180)


def remove_keys() -> None:
    with suppress(OSError):  # not there
        shutil.rmtree(GATEWAY_STATE_FOLDER)
    for path in GATEWAY_STATE_FILES:
        with suppress(OSError):  # not there, or a folder of somebody else's
            remove(path)


def reload_services(path: str) -> None:
    if not systemd_runs():
        return
    if path.startswith(("/etc/systemd/system/", "/usr/local/lib/systemd/system/", "/etc/ssh/")):
        run_checked("systemctl", "daemon-reload")  # it also renews the socket of sshd
    if path.startswith("/etc/ssh/"):
        run_checked("systemctl", "try-restart", "ssh.socket")
        run_checked("systemctl", "try-reload-or-restart", "ssh.service")
    if path.startswith("/etc/netplan/"):
        run_checked("netplan", "apply", within=120)


def write_file(path: str, state: State) -> None:
    if state["link"] is not None:
        put_link(path, check_text(r"[^\0]+", state["link"], "where a link leads"))
    elif state["text"] is not None:
        text = check_text(r"(?s).*", state["text"], "text")
        usual = "0440" if path.startswith("/etc/sudoers.d/") else "0600" if path.startswith("/etc/netplan/") else "0644"
        mode = check_text(r"0?[0-7]{3}", state["mode"] or usual, "a mode as 0644")
        owner = check_text(r"[^:]+:[^:]+", state["owner"] or "root:root", "an owner as root:root")
        put(path, text, int(mode, 8), owner)
    else:
        remove(path)
