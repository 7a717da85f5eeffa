"""Runs in the cluster before an engine: downloads a model's files, and accepts nothing but the hashes that are listed.

Where the manifests were rendered without a hub, they list none: the first pod asks the hub for them, and what it says
then is kept beside the files. The engine's image has huggingface_hub. What was checked once is remembered likewise, by
sizes and times.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

CHECKED, LISTED = ".winhost-checked.json", ".winhost-listed.json"
LONGEST_S = 6 * 3600
BETWEEN_S = 10.0


def main(listing: str, folder: str, role: str = "fetch") -> int:
    """listing: a file with source, revision and files, each `HASH SIZE PATH`, or null for those that the hub lists;
    role: `wait` where another pod fetches them into the same volume.
    """
    wanted = json.loads(Path(listing).read_text("utf-8"))
    here = Path(folder)
    here.mkdir(parents=True, exist_ok=True)
    # What the engine mounts beside it, as its user's; in the mirror of its KV cache is what users asked.
    for name, mode in (("cache", 0o770), ("kv", 0o700)):
        here.with_name(name).mkdir(mode, exist_ok=True)
    there = marks(here, wanted)
    if there is not None and there == known(here):
        return 0
    if role == "wait":
        return waited(here, wanted)
    os.environ["HF_ENDPOINT"] = endpoint(wanted)  # read when the library is imported
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    lines = files_of(here, wanted) or listed(here, wanted)
    download(wanted, here, lines)
    for line in lines:
        kept, size, name = line.split(" ", 2)
        if hash_of(here / name, kept.split(":")[0], int(size)) != kept:
            sys.stderr.write(f"{name} came with another hash or size\n")
            (here / name).unlink()
            return 1
    (here / CHECKED).write_text(json.dumps(marks(here, wanted)), "utf-8")
    return 0


def waited(here: Path, wanted: dict[str, Any]) -> int:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        there = marks(here, wanted)
        if there is not None and there == known(here):
            return 0
        time.sleep(BETWEEN_S)
    sys.stderr.write("the files did not come\n")
    return 1


def known(here: Path) -> object:
    try:
        return json.loads((here / CHECKED).read_text("utf-8"))
    except (OSError, ValueError):
        return None


def marks(here: Path, wanted: dict[str, Any]) -> dict[str, list[int]] | None:
    """Size and time of each wanted file; None where one is missing."""
    found: dict[str, list[int]] = {}
    lines = files_of(here, wanted)
    if not lines:
        return None
    for line in lines:
        name = line.split(" ", 2)[2]
        try:
            status = (here / name).stat()
        except OSError:
            return None
        found[line] = [status.st_size, status.st_mtime_ns]
    return found


def files_of(here: Path, wanted: dict[str, Any]) -> list[str] | None:
    """`HASH SIZE PATH` of each: of the manifests, else as the hub said once."""
    if wanted["files"] is not None:
        return list(wanted["files"])
    try:
        kept = json.loads((here / LISTED).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return list(kept["files"]) if kept["revision"] == wanted["revision"] else None


def listed(here: Path, wanted: dict[str, Any]) -> list[str]:
    """List the files of the model as the hub has them now; the list is kept for later starts."""
    from huggingface_hub import HfApi  # type: ignore[import-not-found]

    entries = HfApi(endpoint=endpoint(wanted)).list_repo_tree(
        repository(wanted), recursive=True, revision=wanted["revision"], token=token()
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
    (here / LISTED).write_text(json.dumps({"revision": wanted["revision"], "files": lines}), "utf-8")
    return lines


def endpoint(wanted: dict[str, Any]) -> str:
    source = urlsplit(str(wanted["source"]))
    return f"{source.scheme}://{source.netloc}"


def repository(wanted: dict[str, Any]) -> str:
    return urlsplit(str(wanted["source"])).path.strip("/")


def token() -> str | bool:
    """Without one, none is looked for."""
    return os.environ.get("HF_TOKEN") or False


def download(wanted: dict[str, Any], here: Path, lines: list[str]) -> None:
    from huggingface_hub import snapshot_download

    names = [line.split(" ", 2)[2] for line in lines]
    snapshot_download(
        repository(wanted), revision=wanted["revision"], local_dir=here, allow_patterns=names, token=token()
    )


def hash_of(path: Path, kind: str, size: int) -> str | None:
    """A blob of git: its SHA-1 is over a header and the content."""
    if path.stat().st_size != size:
        return None
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(b"blob %d\0" % size)  # noqa: S324
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            digest.update(piece)
    return f"{kind}:{digest.hexdigest()}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
