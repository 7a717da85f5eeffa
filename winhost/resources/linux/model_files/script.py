# key {folder: text}   state {source: text | null, revision: text | null, files: [text] | null, token: text | null}
from __future__ import annotations

import urllib.parse

from winhost.agent.linux_head import *

PARTS = ".winhost"  # in the model's folder, so that a complete file can be moved into place without copying
NO_FILES: State = {"source": None, "revision": None, "files": None, "token": None}


@reads("ModelFiles", folder=lambda folder: check_model_folder(folder))
def model_files(key: Key | None) -> Found:
    for folder in [key["folder"]] if key else recorded_values("models", "folder"):
        yield {"folder": folder}, model_state(folder)


def check_model_folder(folder: str) -> None:
    check_text(r"(/[A-Za-z0-9_+@-][A-Za-z0-9._+@-]*){2,}", folder, "the path of a folder, as /srv/models/NAME")
    if re.match(r"/(bin|boot|dev|etc|lib|lib64|proc|root|run|sbin|sys|usr)/|/var/(?!lib/models/)", folder + "/"):
        raise bad_request(f"{folder} is no place for models.")


def model_file(line: str) -> ListedFile:
    form = r"(sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}) [0-9]{1,15} [^\0]+"
    return parse_listed_file(line, form, "a file, as sha256:HASH SIZE PATH", but=PARTS)


def model_state(folder: str) -> State:
    record = model_record(folder)
    if record["source"] is None:
        return dict(NO_FILES)
    known, marks = [(line, line.split(" ", 2)[2]) for line in record["files"]], record["marks"]
    there = [line for line, path in known if path in marks and file_mark(f"{folder}/{path}") == marks[path]]
    # While files are missing the token is null, so that a plan sets it together with the files.
    token = record["token"] if there == record["files"] else None
    return {"source": record["source"], "revision": record["revision"], "files": there, "token": token}


def model_record(folder: str) -> dict[str, Any]:
    """Return the recorded request. marks: of each file when it was verified; ours: files that winhost wrote."""
    nothing = {"folder": folder, **NO_FILES, "marks": {}, "ours": []}
    return {**nothing, **(find_record("models", folder) or {})}


@changes("ModelFiles", "source", "revision", "files", "token")
def change_model_files(key: Key, desired: State, how: State) -> None:
    folder = key["folder"]
    record = model_record(folder)
    if "source" in desired and desired["source"] is None:
        remove_files(folder, record, list(record["ours"]))
        remove_empty_parents(folder)
        remove_record("models", folder)
        return
    wanted = {**{name: record[name] for name in NO_FILES}, **desired}
    files = [model_file(line) for line in wanted["files"] or ()]
    if not files or len({file.path for file in files}) != len(files):
        raise bad_request("The files are a list, each once.")
    lacking = [file for file in files if not is_in_place(folder, file, record)]
    if lacking:
        check_free_space(folder, sum(file.size - size_of(partial_file(folder, file)) for file in lacking))
    for file in files:
        if file not in lacking:
            record["marks"][file.path] = file_mark(f"{folder}/{file.path}")
    record.update(wanted)
    write_record("models", folder, record)  # before the download, so that a part of it can be removed
    download_files(folder, lacking, record, how)
    kept = {file.path for file in files}
    remove_files(folder, record, [path for path in record["ours"] if path not in kept])
    record["ours"] = [path for path in record["ours"] if path in kept]
    write_record("models", folder, record)


def is_in_place(folder: str, file: ListedFile, record: dict[str, Any]) -> bool:
    path = f"{folder}/{file.path}"
    if file_status(path) is None:
        return False
    if is_file(path, file):
        return True
    if file.path not in record["ours"]:
        raise foreign_file_error(path)
    return False


def partial_file(folder: str, file: ListedFile) -> str:
    return f"{folder}/{PARTS}/{file.hash.replace(':', '-')}.part"


def download_files(folder: str, files: list[ListedFile], record: dict[str, Any], how: State) -> None:
    pace, done = Pace(sum(file.size for file in files)), 0
    with waiting("model files"):
        for file in files:
            part = partial_file(folder, file)
            for at in fetch_file(hub_path(record, file), part, file, how.get("secret")):
                report_progress(f"model files: {pace.describe(done + at)}")
            record["ours"] = sorted({*record["ours"], file.path})
            write_record(
                "models", folder, record
            )  # before the move, so that the file is known to be ours after a crash
            move(part, f"{folder}/{file.path}")
            record["marks"][file.path] = file_mark(f"{folder}/{file.path}")
            write_record("models", folder, record)
            done += file.size


def hub_path(record: dict[str, Any], file: ListedFile) -> str:
    if record["source"].startswith("/"):
        return f"{record['source']}/{file.path}"
    return f"{record['source']}/resolve/{record['revision']}/{urllib.parse.quote(file.path)}"


def remove_files(folder: str, record: dict[str, Any], paths: list[str]) -> None:
    for path in paths:
        if file_mark(f"{folder}/{path}") in (None, record["marks"].get(path)):
            remove(f"{folder}/{path}")
            remove_empty_folders(folder, path.rpartition("/")[0])
        else:
            warn(f"{path} was changed since; it stays.")
    for part in Path(folder, PARTS).glob("*.part"):
        remove(str(part))
    remove_empty_folders(folder, PARTS)


def remove_empty_folders(folder: str, inner: str) -> None:
    """Remove a folder, its parents up to the model's folder, and that folder, as far as they are empty."""
    with suppress(OSError):
        for each in (Path(folder, inner), *Path(folder, inner).parents):
            if len(str(each)) < len(folder):
                return
            each.rmdir()
