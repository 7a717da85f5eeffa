# key {path: text}   state {secret: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

HOLDS = r"/etc/rancher/k3s/join-token"


@reads("SecretFile", "path")
def secret_files(key: Key | None) -> Found:
    for path in [key["path"]] if key else recorded("secrets", "path"):
        yield {"path": path}, {"secret": secret_file(secret_path(path))}


def secret_path(path: str) -> str:
    return matching(HOLDS, path, "the path of a file for a secret")


def secret_file(path: str) -> str | None:
    kept = read_record(secret_record_of(path))
    if kept is None:
        return None
    if kept["mark"] is None:
        return str(kept["secret"]) + ", begun"
    return kept["secret"] if kept["mark"] == secret_mark(path) else None


def secret_mark(path: str) -> list[int] | None:
    """A mark by which a file is recognized without reading it."""
    found = status(path)
    return None if found is None else [found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode]


def secret_record_of(path: str) -> str:
    return record_path("secrets", path)


def keep_secret(path: str, **more: Any) -> None:
    put(secret_record_of(path), json.dumps({"path": path, **more}), 0o600)


@changes("SecretFile", "secret")
def change_secret_file(key: Key, desired: State, how: State) -> None:
    path = secret_path(key["path"])
    ours = status(secret_record_of(path)) is not None
    if desired["secret"] is None:
        if ours:
            remove(path)
        remove(secret_record_of(path))
        return
    secret = how.get("secret")
    if not isinstance(secret, str) or not secret.strip():
        raise bad_request("The secret is not there.")
    if status(path) is not None and not ours:
        raise AgentFault("Winhost.NotOurs", "ResourceExists", f"{path} is another file, which winhost did not write.")
    keep_secret(path, secret=desired["secret"], mark=None)  # before it is there: a crash leaves a file that is ours
    put(path, secret.strip() + "\n", 0o600)
    keep_secret(path, secret=desired["secret"], mark=secret_mark(path))
