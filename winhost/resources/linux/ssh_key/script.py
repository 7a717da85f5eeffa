# key {user: text, key: text}   state {present: bool, options: text | null, comment: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

KEY_KINDS = (
    r"(?:ssh-(?:ed25519|rsa)|ecdsa-sha2-nistp(?:256|384|521)|sk-(?:ssh-ed25519|ecdsa-sha2-nistp256)@openssh\.com)"
)
# Options may contain quoted blanks. The pattern matches a line in only one way, because users write these files.
KEY_LINE = re.compile(
    r'[ \t]*(?:((?:[^\s"]|"(?:[^"\\]|\\"|\\(?!"))*")+)[ \t]+)??(' + KEY_KINDS + r") ([A-Za-z0-9+/]+=*)(?:[ \t](.*))?\r?"
)


class KeyLine(NamedTuple):
    key: str
    options: str | None
    comment: str | None


@reads("SshKey", user=account_name, key=lambda key: public_key(key))
def ssh_keys(key: Key | None) -> Found:
    if key:
        yield key, ssh_key(accounts().get(key["user"]), key["key"])
        return
    for user, account in sorted(accounts().items()):
        for each in sorted({line.key for line in key_lines(account)}):
            yield {"user": user, "key": each}, ssh_key(account, each)


def public_key(text: str) -> None:
    """Refuse a text that is not a public key. The data of a key repeat its kind."""
    kind, _, data = check_text(
        KEY_KINDS + r" [A-Za-z0-9+/]+={0,2}", text, "a public key, as ssh-ed25519 AAAA..."
    ).partition(" ")
    with suppress(ValueError):
        raw = base64.b64decode(data, validate=True)
        if raw[4 : 4 + len(kind)].decode("ascii") == kind and raw[:4] == len(kind).to_bytes(4, "big"):
            return
    raise bad_request(f"{text!r:.60} is no public key.")


def ssh_key(account: LocalUser | None, key: str) -> State:
    found = next((line for line in key_lines(account) if line.key == key), None) if account else None
    if found is None:
        return {"present": False, "options": None, "comment": None}
    return {"present": True, "options": found.options, "comment": found.comment}


def authorized_keys_file(account: LocalUser) -> str:
    """Return the path of authorized_keys. Links to the home folder are resolved; links in it are never followed."""
    return os.path.realpath(account.home) + "/.ssh/authorized_keys"


def key_lines(account: LocalUser) -> list[KeyLine]:
    return [found for found in map(key_line, lines_in(keys_text(account))) if found]


def lines_in(text: str) -> list[str]:
    """Split a text into lines with their ends, as sshd does: only at line feeds."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def keys_text(account: LocalUser) -> str:
    try:
        there = file_status(authorized_keys_file(account)) is not None
    except NotADirectoryError:  # a home that is none, as /dev/null
        there = False
    try:
        return read_file(authorized_keys_file(account)).decode("utf-8") if there else ""
    except UnicodeDecodeError:
        raise wrong_state(f"{authorized_keys_file(account)} is no text, so it could not be kept as it is.") from None


def key_line(line: str) -> KeyLine | None:
    found = KEY_LINE.fullmatch(line.rstrip("\n"))
    return KeyLine(f"{found[2]} {found[3]}", found[1], (found[4] or "").strip() or None) if found else None


@changes("SshKey", "present", "options", "comment", cuts=lambda key: is_logon_account(key["user"]))
def change_ssh_key(key: Key, desired: State, how: State) -> None:
    account = accounts().get(key["user"])
    if account is None:
        raise wrong_state(f"There is no user {key['user']}.")
    wanted = {**ssh_key(account, key["key"]), **desired}
    lines = lines_in(keys_text(account))
    mine = [n for n, line in enumerate(lines) if (key_line(line) or KeyLine("", None, None)).key == key["key"]]
    kept = [line for n, line in enumerate(lines) if n not in mine]
    if wanted["present"]:
        refuse_unread_file(account)
        # At its former position, or first, because the last line may lack a line feed.
        kept.insert(mine[0] if mine else 0, new_line(key["key"], wanted))
    write_keys(account, "".join(kept))


def new_line(key: str, wanted: State) -> str:
    parts = [wanted["options"], key, wanted["comment"]]
    line = " ".join(part for part in parts if part)
    if "\n" in line or key_line(line) != KeyLine(key, wanted["options"], wanted["comment"]):
        raise bad_request("These options and this comment make no line of authorized_keys.")
    return line + "\n"


def refuse_unread_file(account: LocalUser) -> None:
    """Refuse a file that sshd would not read: it reads another one, or others may write to this one."""
    if find_program("sshd"):
        told = run_checked("sshd", "-T", "-C", f"user={account.name},host=localhost,addr=127.0.0.1").splitlines()
        places = next((line.split()[1:] for line in told if line.startswith("authorizedkeysfile ")), [])
        tokens = {"%h": account.home, "%u": account.name, "%U": str(account.uid), "%%": "%"}
        meant = [re.sub("%.", lambda found: tokens.get(found[0], found[0]), each) for each in places]
        if authorized_keys_file(account) not in [os.path.realpath(os.path.join(account.home, each)) for each in meant]:
            raise wrong_state("sshd looks for keys of {} in {}.".format(account.name, ", ".join(meant) or "no file"))
    file = authorized_keys_file(account)
    if not os.path.isdir(account.home):
        raise wrong_state(f"{account.name} has no home for them: there is no folder {account.home}.")
    for path in (os.path.realpath(account.home), file.rpartition("/")[0], file):
        found = file_status(path)
        if found is not None and (found.st_uid not in (0, account.uid) or stat.S_IMODE(found.st_mode) & 0o022):
            raise wrong_state(
                f"sshd does not read keys there, because others may write to {path}. Change its mode first."
            )


def write_keys(account: LocalUser, text: str) -> None:
    """Write the file, or remove the file and folder that winhost created if they become empty."""
    file = authorized_keys_file(account)
    folder, found = file.rpartition("/")[0], file_status(file)
    made = find_record("made", f"keys {file}") or {"file": found is None, "folder": file_status(folder) is None}
    if not text and made["file"]:
        remove(file)
        with suppress(OSError), open_folder(folder) as (above, name):
            if made["folder"]:
                os.rmdir(name, dir_fd=above)
        remove_record("made", f"keys {file}")
        return
    if found is None:
        write_record("made", f"keys {file}", made)
        make_folder(folder, account)
    mode = 0o600 if found is None else stat.S_IMODE(found.st_mode)
    with open_folder(folder) as (above, name):
        owner = owner_name(os.stat(name, dir_fd=above) if found is None else found)
    put(file, text, mode, owner)


def make_folder(path: str, account: LocalUser) -> None:
    with open_folder(path) as (above, name), suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=above)
        os.chown(name, account.uid, account.gid, dir_fd=above, follow_symlinks=False)
