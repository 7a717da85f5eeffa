# key {}   state {key: text | null, next: text | null, prepared: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

HOST_KEY = "/etc/ssh/ssh_host_ed25519_key"
NEXT_KEY = f"{HOST_KEY}.winhost"


@reads("SshHostKey")
def ssh_host_key(key: Key | None) -> Found:
    state = {"key": value(lambda: read_public_key(HOST_KEY)), "next": value(lambda: read_public_key(NEXT_KEY))}
    yield {}, dict(state, prepared=file_status(f"{NEXT_KEY}.pub") is not None)


def read_public_key(path: str) -> str | None:
    text = read_text(f"{path}.pub")
    return None if text is None else " ".join(text.split()[:2])


@changes("SshHostKey", "prepared", "key")
def change_ssh_host_key(key: Key, desired: State, how: State) -> None:
    if desired.get("prepared", True) not in (True, False):
        raise bad_request("prepared is true or false.")
    if "key" in desired:
        replace_key(check_text(r"ssh-ed25519 [A-Za-z0-9+/]{68}", desired["key"], "an ed25519 key, without a name"))
    elif desired["prepared"]:
        prepare_key()
    else:
        remove(f"{NEXT_KEY}.pub")
        remove(NEXT_KEY)


def prepare_key() -> None:
    # Generated under a third name: the public file of the next key exists only when both files are complete.
    made = f"{NEXT_KEY}.new"
    for left in (made, f"{made}.pub", f"{NEXT_KEY}.pub", NEXT_KEY):
        remove(left)
    run_checked("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "winhost", "-f", made)
    rename(made, NEXT_KEY)
    rename(f"{made}.pub", f"{NEXT_KEY}.pub")


def replace_key(public: str) -> None:
    if read_public_key(NEXT_KEY) != public or file_status(NEXT_KEY) is None:
        raise wrong_state("That key was not prepared on this machine.")
    run_checked("sshd", "-t", "-h", NEXT_KEY)
    put(HOST_KEY, read_file(NEXT_KEY).decode("ascii"), 0o600)
    if systemd_runs():
        run_checked("systemctl", "try-reload-or-restart", "ssh.service")
    # The public file is replaced last. After an interruption the old key is still reported, and the change is repeated.
    rename(f"{NEXT_KEY}.pub", f"{HOST_KEY}.pub")
    remove(NEXT_KEY)


def rename(path: str, to: str) -> None:
    with open_folder(path) as (folder, name):
        os.rename(name, Path(to).name, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
