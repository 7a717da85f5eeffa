# key {path: text}   state {secret: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *


@reads("SecretFile", path=text_check(r"/etc/rancher/k3s/join-token", "the path of a file for a secret"))
def secret_files(key: Key | None) -> Found:
    for path in [key["path"]] if key else recorded_values("secrets", "path"):
        yield {"path": path}, {"secret": secret_file(path)}


def secret_file(path: str) -> str | None:
    kept = find_record("secrets", path)
    if kept is None:
        return None
    if kept["mark"] is None:
        return str(kept["secret"]) + ", begun"
    return kept["secret"] if kept["mark"] == file_mark(path) else None


@changes("SecretFile", "secret")
def change_secret_file(key: Key, desired: State, how: State) -> None:
    path = key["path"]
    ours = find_record("secrets", path) is not None
    if desired["secret"] is None:
        if ours:
            remove(path)
        remove_record("secrets", path)
        return
    secret = how.get("secret")
    if not isinstance(secret, str) or not secret.strip():
        raise bad_request("The secret is not there.")
    if file_status(path) is not None and not ours:
        raise foreign_file_error(path)
    write_record(
        "secrets", path, {"path": path, "secret": desired["secret"], "mark": None}
    )  # before it is there: a crash leaves a file that is ours
    put(path, secret.strip() + "\n", 0o600)
    write_record("secrets", path, {"path": path, "secret": desired["secret"], "mark": file_mark(path)})
