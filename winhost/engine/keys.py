"""Keys that winhost makes where nobody names one: a pair for SSH to the Linux of a host, and an API key for its models.

Each host has its own, in the private state of the user who runs winhost. They stay there after a rollback, so that the
same host gets the same keys when it is planned again; whoever deletes them is asked for none, because others are made.
While a plan may still be declined, new keys lie in a folder of its own, `pending`, until `keep_pending` keeps them.
"""

import getpass
import os
import re
import secrets
import subprocess
from pathlib import Path

from filelock import FileLock

from winhost.connect.own_key import public_line
from winhost.core.dataclass import dataclass
from winhost.engine.store import Store, not_private
from winhost.model.errors import UsageError, visible
from winhost.model.files import write_whole
from winhost.model.fleet import Host, Ssh
from winhost.model.secrets import Secret, SecretRef

SERVICE = "winhost/api-key"  # in a keyring, before the host
_SSH, _API, _REFERENCE = "ssh", "api-key", "api-key-at"
_LONGEST_NAME = 64  # of a key, as the gateway reads it


@dataclass(frozen=True)
class SshKey:
    """line: the public half, for the Linux; key: where the private one is; ours: winhost made the pair."""

    line: str
    key: SecretRef
    ours: bool


@dataclass(frozen=True)
class ApiKey:
    """name: whose; key: where it is; made: the key itself, where it was made now."""

    name: str
    key: SecretRef
    made: Secret | None = None


# ---- SSH


def ssh_key(host: str, named: Ssh | None, store: Store | None = None, pending: Path | None = None) -> SshKey:
    """named: of fleet.yaml. Without it the pair that winhost made for this host, which is made now if there is none.

    Raises UsageError: NoPublicHalf, SecretUnreadable, NoStore, NotPrivate.
    """
    if named is not None and named.key is not None:
        return SshKey(public_line(host, named.key, named.position_of("key")), named.key, ours=False)
    store = store or Store()
    file = store.key(host, _SSH)
    with _making(store):
        if pending and not file.exists():
            file = pending / _SSH
        if not file.exists():
            _keep(file, _new_private_key())
    reference = _at(file)
    return SshKey(f"{public_line(host, reference, str(file))} winhost", reference, ours=True)


def with_ssh_key(host: Host, store: Store | None = None) -> Host:
    """The host as it is reached: where fleet.yaml names no key for its Linux, by the one that winhost made for it."""
    named = host.ssh or Ssh()
    if named.key is not None:
        return host
    file = (store or Store()).key(host.name, _SSH)
    if not file.exists():
        return host
    ssh = named.model_copy(update={"key": _at(file), "written_at": {"key": visible(str(file))}})
    return host.model_copy(update={"ssh": ssh})


def _new_private_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


# ---- API


def kept_api_key(host: str, store: Store | None = None) -> ApiKey | None:
    """The key that winhost made for the models of a host, if it made one. Raises UsageError: KeyLost."""
    store = store or Store()
    file, reference_file = store.key(host, _API), store.key(host, _REFERENCE)
    if file.exists():
        return ApiKey(_own_name(), _at(file))
    return ApiKey(_own_name(), _read_reference(reference_file)) if reference_file.exists() else None


def api_key(host: str, store: Store | None = None, pending: Path | None = None) -> ApiKey:
    """The key of this user for the models of a host, made now if there is none.

    It is kept in the keyring of the system where one works, else in a file. Where WINHOST_STATE names the state, it is
    in that folder, with all the rest. Raises UsageError: NoStore, NotPrivate.
    """
    store, name = store or Store(), _own_name()
    with _making(store):
        if found := kept_api_key(host, store):
            return found
        if pending and (pending / _API).exists():
            return ApiKey(name, _at(pending / _API))
        made = Secret(f"wh-{secrets.token_urlsafe(32)}")
        if pending:
            _keep(pending / _API, made.reveal())
            return ApiKey(name, _at(pending / _API), made)
        return ApiKey(name, _keep_api_key(host, made, store), made)


def _keep_api_key(host: str, made: Secret, store: Store) -> SecretRef:
    kept = SecretRef("keyring", f"{SERVICE}/{host}/{_own_name()}")
    if "WINHOST_STATE" not in os.environ and kept.keep(made):
        _keep(store.key(host, _REFERENCE), f"{kept.written}\n")
        return kept
    _keep(file := store.key(host, _API), made.reveal())
    return _at(file)


def _read_reference(file: Path) -> SecretRef:
    try:
        return SecretRef.parse(file.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        raise UsageError(
            "KeyLost",
            what=f"{visible(str(file))} does not say where the API key is",
            hint="Delete that file, and another key is made",
        ) from None


def _own_name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        name = ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_LONGEST_NAME] or "user"


# ---- the folder


def keep_pending(host: str, pending: Path, store: Store | None = None) -> SecretRef | None:
    """Keep what was made in this folder, and empty it. Returns where the API key is now, if it was made there.

    Raises UsageError (KeysMadeMeanwhile) where another plan has made keys for this host since.
    """
    store = store or Store()
    ssh, api = pending / _SSH, pending / _API
    with _making(store):
        if (ssh.exists() and store.key(host, _SSH).exists()) or (api.exists() and kept_api_key(host, store)):
            raise UsageError(
                "KeysMadeMeanwhile",
                what=f"another plan for {visible(host)} has made its keys meanwhile",
                meaning="Nothing was changed.",
                hint="Type it again: the new plan uses those keys.",
                host=host,
            )
        if ssh.exists():
            _keep(store.key(host, _SSH), ssh.read_bytes())
            ssh.unlink()
        if not api.exists():
            return None
        kept = _keep_api_key(host, Secret(api.read_text("utf-8")), store)
        api.unlink()
        return kept


def is_pending(pending: Path) -> bool:
    """Tell whether a pair for SSH was made in this folder."""
    return (pending / _SSH).exists()


def _at(file: Path) -> SecretRef:
    return SecretRef("file", str(file.absolute()))


def _making(store: Store) -> FileLock:
    """Lock the keys, so that two plans at once make one key."""
    return FileLock(store.keys() / ".lock", mode=0o600)


def _keep(file: Path, text: str | bytes) -> None:
    if os.name == "nt":
        close_to_others(file.parent)
    write_whole(file, [text], mode=0o600)


def close_to_others(folder: Path) -> None:
    """Close a folder to others on Windows. One of %LOCALAPPDATA% is its user's alone, but WINHOST_STATE may name one
    anywhere. Raises UsageError: NotPrivate.
    """
    user = f"{os.environ.get('USERDOMAIN', '.')}\\{os.environ.get('USERNAME', '')}"
    program = Path(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "icacls.exe")
    words = [str(program), str(folder), "/inheritance:r", "/grant:r", f"{user}:(OI)(CI)F", "*S-1-5-18:(OI)(CI)F"]
    try:
        done = subprocess.run(  # noqa: S603 - Windows' own, no shell
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        done = None
    if done is None or done.returncode != 0:
        hint = "Set WINHOST_STATE to a folder of your own on a volume with access lists, or leave it unset"
        raise not_private(folder, "cannot be closed to other accounts", hint)
