# key {path: text}   state {files: {name: text} | null, only_root: bool | null}
from __future__ import annotations

import secrets

from winhost.agent.linux_head import *

PROGRAM_FOLDER = r"/opt/winhost/(?:gateway(?:-plain-http)?-[0-9a-f]{16}/gateway|weights-[0-9a-f]{16}/winhost_weights)"
TEMPORARY_SUFFIX = ".winhost-"  # of a folder that is about to be renamed, or was renamed to be removed


# A folder's name contains a hash of its content, so without a key there is nothing to list.
@reads("LinuxFolder", path=text_check(PROGRAM_FOLDER, "among the folders that winhost writes"))
def linux_folders(key: Key | None) -> Found:
    for path in [key["path"]] if key else ():
        yield {"path": path}, linux_folder(path)


def linux_folder(path: str) -> State:
    found = file_status(path)
    if found is None:
        return {"files": None, "only_root": None}
    if not stat.S_ISDIR(found.st_mode):
        raise wrong_state(f"{path} is no folder.")
    states = [found, *(file_status(f"{path}/{name}") for name in names_in(path))]
    only_root = all(each is not None and each.st_uid == 0 and not each.st_mode & 0o022 for each in states)
    return {"files": value(lambda: texts_in(path)), "only_root": only_root}


def texts_in(path: str) -> dict[str, str]:
    return {program_file(name): read_file(f"{path}/{name}").decode("utf-8") for name in names_in(path)}


def program_file(name: object) -> str:
    return check_text(r"[a-z_]+\.py", name, "the name of a file of a program, as turns.py")


def names_in(path: str) -> list[str]:
    with open_folder(f"{path}/.") as (folder, _), os.scandir(folder) as found:
        return sorted(each.name for each in found)


@changes("LinuxFolder", "files", "only_root")
def change_linux_folder(key: Key, desired: State, how: State) -> None:
    path = key["path"]
    before = linux_folder(path)
    if before["files"] is not None:
        texts_in(path)  # raises if the files cannot be read, because then they could not be restored
    files = dict(before, **desired)["files"]
    made = f"{path}{TEMPORARY_SUFFIX}{secrets.token_hex(8)}"
    try:
        if files is not None:
            write_folder(made, check_texts(files))
        if before["files"] is not None:
            move(path, f"{made}.old")
        if files is not None:
            move(made, path)
    finally:
        remove_temporary_folders(path)


def check_texts(files: object) -> dict[str, str]:
    if not isinstance(files, dict) or not files:
        raise bad_request("files: texts by their names, or null")
    return {program_file(name): check_text(r"(?s).*", text, "text") for name, text in files.items()}


def write_folder(path: str, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        put(f"{path}/{name}", text)
    with open_folder(f"{path}/.") as (folder, _):
        os.fchmod(folder, 0o755)  # independent of the umask


def remove_temporary_folders(path: str) -> None:
    """Remove temporary folders, including those of a killed change, and the parent folder if it is empty."""
    above, _, name = path.rpartition("/")
    if file_status(above) is None:
        return
    for each in names_in(above):
        if each.startswith(f"{name}{TEMPORARY_SUFFIX}"):
            remove_folder(f"{above}/{each}")
    with suppress(OSError), open_folder(above) as (folder, called):
        os.rmdir(called, dir_fd=folder)
    remove_empty_parents(above)


def remove_folder(path: str) -> None:
    for name in names_in(path):
        remove(f"{path}/{name}")
    with suppress(FileNotFoundError), open_folder(path) as (folder, name):
        os.rmdir(name, dir_fd=folder)
