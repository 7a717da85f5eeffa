# key {path: text}   state {source: text | null, sha256: text | null, bytes: int | null}
from __future__ import annotations

from winhost.agent.linux_head import *

K3S_PROGRAM = "/usr/local/bin/k3s"
RELEASE_FILES = r"/usr/local/bin/k3s|/var/lib/rancher/k3s/agent/images/k3s-airgap-images-(?:amd64|arm64)\.tar\.zst"
NO_RELEASE_FILE: State = {"source": None, "sha256": None, "bytes": None}


@reads("ReleaseFile", path=text_check(RELEASE_FILES, "the path of a file that winhost brings"))
def release_files(key: Key | None) -> Found:
    for path in [key["path"]] if key else recorded_values("releases", "path"):
        yield {"path": path}, release_file(path)


def release_file(path: str) -> State:
    found, kept = file_status(path), release_record(path)
    if found is None:
        return {**NO_RELEASE_FILE, "source": kept["source"]}  # the download may have begun
    with open_file(path) as file:
        digest = sha256_of(file)
    return {"source": kept["source"] if kept["sha256"] == digest else None, "sha256": digest, "bytes": found.st_size}


def release_record(path: str) -> dict[str, Any]:
    """Return the record of a file that winhost copied or began to copy."""
    return find_record("releases", path) or {"path": path, "source": None, "sha256": None}


@changes("ReleaseFile", "source", "sha256", "bytes")
def change_release_file(key: Key, desired: State, how: State) -> None:
    path = key["path"]
    before = release_file(path)
    if desired.get("source", "") is None:
        if before["source"] is not None and before["sha256"] is not None:
            remove(path)
        remove(partial_release(path))
        remove_record("releases", path)
        return
    after = {**before, **desired}
    if before["sha256"] is not None and before["source"] is None and before["sha256"] != after["sha256"]:
        raise foreign_file_error(path)
    if not (after["source"] and after["sha256"] and after["bytes"]):
        raise bad_request("A file has a source, a SHA-256 and a size.")
    # Recorded before the download, so that a part of it can be removed.
    write_record("releases", path, {"path": path, **{name: after[name] for name in ("source", "sha256")}})
    if before["sha256"] != after["sha256"]:
        download_release(path, after)


def partial_release(path: str) -> str:
    return path + ".winhost-part"


def download_release(path: str, after: State) -> None:
    part, name = partial_release(path), path.rpartition("/")[2]
    check_free_space(path, after["bytes"] - size_of(part))
    pace = Pace(after["bytes"])
    with waiting(name):
        for at in fetch_file(
            after["source"], part, ListedFile(f"sha256:{after['sha256']}", after["bytes"], name), None
        ):
            report_progress(f"{name}: {pace.describe(at)}")
    with open_file(part) as file:
        os.fchmod(file.fileno(), 0o755 if path == K3S_PROGRAM else 0o644)
    move(part, path)
