"""The files of a model as a hub lists them at one revision, with their sizes and hashes: what a plan has of them."""

import re
from typing import Any

from winhost.core.answers import Json
from winhost.hub.hub_repository import HUB, HubRepository, is_commit, not_listed
from winhost.model.errors import visible
from winhost.model.secrets import SecretRef


def model_files(model: str, revision: str, reference: str | None = None, hub: str = HUB) -> dict[str, Json]:
    """The desired state of `ModelFiles`. model: ORG/NAME; revision: a commit; reference: to the token.

    Raises WinhostError (NotListed) and UsageError (SecretUnreadable).
    """
    if not is_commit(revision):
        hint = "Give all 40 digits: a branch may lead elsewhere tomorrow"
        raise not_listed(model, f"{visible(revision)} is not a commit", hint)
    token = SecretRef.parse(reference).resolve() if reference else None
    files = without_copies(listed_files(HubRepository(model, revision, hub, token)))
    if not files:
        raise not_listed(model, "has no files at this revision", f"See {hub}/{model}/tree/{revision}")
    return {"source": f"{hub}/{model}", "revision": revision, "files": files, "token": reference}


def listed_files(repository: HubRepository) -> list[str]:
    """`HASH SIZE PATH` of each file, as `ModelFiles` has them."""
    return sorted(_line(repository.model, entry) for entry in repository.entries() if entry.get("type") == "file")


def without_copies(lines: list[str]) -> list[str]:
    """Without the weights that some repositories have once more in another format: Llama below `original/`, gpt-oss
    below `metal/` too. vLLM's own download leaves out `original/` (LoadConfig.ignore_patterns).
    """
    paths = [line.split(" ", 2)[2] for line in lines]
    if not any(path.endswith(".safetensors") and "/" not in path for path in paths):
        return lines
    return [line for line, path in zip(lines, paths, strict=True) if not _COPY.fullmatch(path)]


_COPY = re.compile(r"(original|metal)/.*\.(safetensors|bin|pth|pt)")


def _line(model: str, entry: dict[str, Any]) -> str:
    """Large files have a SHA-256 (of Git LFS); of small ones the hub tells the hash of git."""
    path, lfs = str(entry.get("path")), entry.get("lfs") or {}
    hash_ = f"sha256:{lfs.get('oid')}" if lfs else f"git-sha1:{entry.get('oid')}"
    size = (lfs or entry).get("size")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}", hash_) or type(size) is not int or size < 0:
        raise not_listed(model, f"the hub tells no hash of {visible(path)}", "Try again")
    if any(part in ("", ".", "..", ".winhost") for part in path.split("/")) or not path.isprintable():
        raise not_listed(model, f"{visible(path)} leads out of its folder", "Do not use this model")
    return f"{hash_} {size} {path}"
