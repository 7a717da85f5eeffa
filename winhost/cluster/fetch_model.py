"""Download a model's files in the cluster, before its engine starts, and accept only files with the listed hashes.

If the manifests were rendered without a hub, they list no files: the first pod asks the hub for the list, and stores it
next to the files. The engine's image has huggingface_hub. Sizes and times of checked files are stored as well, so that
they are not checked again.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHECKED_FILE, LISTED_FILE = ".winhost-checked.json", ".winhost-listed.json"
MAX_WAIT_SECONDS = 6 * 3600
POLL_SECONDS = 10.0


def main(listing_file: str, model_folder: str, role: str = "fetch") -> int:
    """listing_file: JSON with source, revision and files, each `HASH SIZE PATH`, or null for the files that the hub
    lists; role: `wait` if another pod fetches them into the same volume.
    """
    listing = json.loads(Path(listing_file).read_text("utf-8"))
    folder = Path(model_folder)
    folder.mkdir(parents=True, exist_ok=True)
    # The engine mounts these folders as well, as its user's. The mirror of its KV cache contains prompts.
    for name, mode in (("cache", 0o770), ("kv", 0o700)):
        folder.with_name(name).mkdir(mode, exist_ok=True)
    current = marks(folder, listing)
    if current is not None and current == read_marks(folder):
        return 0
    if role == "wait":
        return wait_for_files(folder, listing)
    os.environ["HF_ENDPOINT"] = endpoint(listing)  # read when the library is imported
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    lines = listed_files(folder, listing) or list_files(folder, listing)
    download(listing, folder, lines)
    for line in lines:
        digest, size, name = line.split(" ", 2)
        if hash_of(folder / name, digest.split(":")[0], int(size)) != digest:
            sys.stderr.write(f"{name} came with another hash or size\n")
            (folder / name).unlink()
            return 1
    (folder / CHECKED_FILE).write_text(json.dumps(marks(folder, listing)), "utf-8")
    return 0


def wait_for_files(folder: Path, listing: dict[str, Any]) -> int:
    until = time.monotonic() + MAX_WAIT_SECONDS
    while time.monotonic() < until:
        current = marks(folder, listing)
        if current is not None and current == read_marks(folder):
            return 0
        time.sleep(POLL_SECONDS)
    sys.stderr.write("the files did not come\n")
    return 1


def read_marks(folder: Path) -> object:
    try:
        return json.loads((folder / CHECKED_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def marks(folder: Path, listing: dict[str, Any]) -> dict[str, list[int]] | None:
    """Return size and time of each listed file; None if one is missing."""
    found: dict[str, list[int]] = {}
    lines = listed_files(folder, listing)
    if not lines:
        return None
    for line in lines:
        name = line.split(" ", 2)[2]
        try:
            status = (folder / name).stat()
        except OSError:
            return None
        found[line] = [status.st_size, status.st_mtime_ns]
    return found


def listed_files(folder: Path, listing: dict[str, Any]) -> list[str] | None:
    """Return `HASH SIZE PATH` of each file: from the manifests, else from the stored list; None if there is no list."""
    if listing["files"] is not None:
        return list(listing["files"])
    try:
        stored = json.loads((folder / LISTED_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return list(stored["files"]) if stored["revision"] == listing["revision"] else None


def list_files(folder: Path, listing: dict[str, Any]) -> list[str]:
    """Ask the hub for the files of the model, and store the list for later starts."""
    from huggingface_hub import HfApi  # type: ignore[import-not-found]

    entries = HfApi(endpoint=endpoint(listing)).list_repo_tree(
        repository(listing), recursive=True, revision=listing["revision"], token=token()
    )
    files = [each for each in entries if hasattr(each, "blob_id")]  # folders have none
    lines = sorted(
        f"sha256:{each.lfs.sha256} {each.lfs.size} {each.path}"
        if each.lfs
        else f"git-sha1:{each.blob_id} {each.size} {each.path}"
        for each in files
    )
    if any(".." in Path(each.path).parts or Path(each.path).is_absolute() for each in files):
        raise ValueError("a file leads out of the folder")
    (folder / LISTED_FILE).write_text(json.dumps({"revision": listing["revision"], "files": lines}), "utf-8")
    return lines


def endpoint(listing: dict[str, Any]) -> str:
    source = urlsplit(str(listing["source"]))
    return f"{source.scheme}://{source.netloc}"


def repository(listing: dict[str, Any]) -> str:
    return urlsplit(str(listing["source"])).path.strip("/")


def token() -> str | bool:
    """Return the token; False keeps the library from looking for one elsewhere."""
    return os.environ.get("HF_TOKEN") or False


def download(listing: dict[str, Any], folder: Path, lines: list[str]) -> None:
    from huggingface_hub import snapshot_download

    names = [line.split(" ", 2)[2] for line in lines]
    snapshot_download(
        repository(listing), revision=listing["revision"], local_dir=folder, allow_patterns=names, token=token()
    )


def hash_of(path: Path, kind: str, size: int) -> str | None:
    """Hash a file by SHA-256, or as a blob of git, whose SHA-1 is over a header and the content. None if the size is
    not the expected one.
    """
    if path.stat().st_size != size:
        return None
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return f"{kind}:{digest.hexdigest()}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
