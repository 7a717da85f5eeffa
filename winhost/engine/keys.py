"""Keys that winhost makes where nobody names one: a pair for SSH to the Linux of a host, and an API key for its models.

Each host has its own, in the private state of the user who runs winhost. They stay there after a rollback, so that the
same host gets the same keys when it is planned again; whoever deletes them is asked for none, because others are made.
While a plan may still be declined, new keys lie in a folder of its own, `pending`, until `store_pending` keeps them.
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
from winhost.engine.store import Store, not_private_error
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
    is_managed: bool


@dataclass(frozen=True)
class ApiKey:
    """name: whose; key: where it is; made: the key itself, where it was made now."""

    name: str
    key: SecretRef
    created: Secret | None = None


# ---- SSH


def ssh_key(host: str, configured: Ssh | None, store: Store | None = None, pending: Path | None = None) -> SshKey:
    """named: of fleet.yaml. Without it the pair that winhost made for this host, which is made now if there is none.

    Raises UsageError: NoPublicHalf, SecretUnreadable, NoStore, NotPrivate.
    """
    if configured is not None and configured.key is not None:
        return SshKey(public_line(host, configured.key, configured.at("key")), configured.key, is_managed=False)
    store = store or Store()
    file = store.key(host, _SSH)
    with _lock_keys(store):
        if pending and not file.exists():
            file = pending / _SSH
        if not file.exists():
            _write_private(file, _new_private_key())
    reference = _file_reference(file)
    return SshKey(f"{public_line(host, reference, str(file))} winhost", reference, is_managed=True)


def with_ssh_key(host: Host, store: Store | None = None) -> Host:
    """The host as it is reached: where fleet.yaml names no key for its Linux, by the one that winhost made for it."""
    configured = host.ssh or Ssh()
    if configured.key is not None:
        return host
    file = (store or Store()).key(host.name, _SSH)
    if not file.exists():
        return host
    ssh = configured.model_copy(update={"key": _file_reference(file), "written_at": {"key": visible(str(file))}})
    return host.model_copy(update={"ssh": ssh})


def _new_private_key() -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())


# ---- API


def stored_api_key(host: str, store: Store | None = None) -> ApiKey | None:
    """The key that winhost made for the models of a host, if it made one. Raises UsageError: KeyLost."""
    store = store or Store()
    file, reference_file = store.key(host, _API), store.key(host, _REFERENCE)
    if file.exists():
        return ApiKey(_user_name(), _file_reference(file))
    return ApiKey(_user_name(), _read_reference(reference_file)) if reference_file.exists() else None


def api_key(host: str, store: Store | None = None, pending: Path | None = None) -> ApiKey:
    """The key of this user for the models of a host, made now if there is none.

    It is kept in the keyring of the system where one works, else in a file. Where WINHOST_STATE names the state, it is
    in that folder, with all the rest. Raises UsageError: NoStore, NotPrivate.
    """
    store, name = store or Store(), _user_name()
    with _lock_keys(store):
        if stored := stored_api_key(host, store):
            return stored
        if pending and (pending / _API).exists():
            return ApiKey(name, _file_reference(pending / _API))
        key = Secret(f"wh-{secrets.token_urlsafe(32)}")
        if pending:
            _write_private(pending / _API, key.reveal())
            return ApiKey(name, _file_reference(pending / _API), key)
        return ApiKey(name, _store_api_key(host, key, store), key)


def _store_api_key(host: str, key: Secret, store: Store) -> SecretRef:
    reference = SecretRef("keyring", f"{SERVICE}/{host}/{_user_name()}")
    if "WINHOST_STATE" not in os.environ and reference.keep(key):
        _write_private(store.key(host, _REFERENCE), f"{reference.written}\n")
        return reference
    _write_private(file := store.key(host, _API), key.reveal())
    return _file_reference(file)


def _read_reference(file: Path) -> SecretRef:
    try:
        return SecretRef.parse(file.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        raise UsageError(
            "KeyLost",
            what=f"{visible(str(file))} does not say where the API key is",
            hint="Delete that file, and another key is made",
        ) from None


def _user_name() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without a name, as in some containers
        name = ""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[:_LONGEST_NAME] or "user"


# ---- the folder


def store_pending(host: str, pending: Path, store: Store | None = None) -> SecretRef | None:
    """Keep what was made in this folder, and empty it. Returns where the API key is now, if it was made there.

    Raises UsageError (KeysMadeMeanwhile) where another plan has made keys for this host since.
    """
    store = store or Store()
    ssh, api = pending / _SSH, pending / _API
    with _lock_keys(store):
        if (ssh.exists() and store.key(host, _SSH).exists()) or (api.exists() and stored_api_key(host, store)):
            raise UsageError(
                "KeysMadeMeanwhile",
                what=f"another plan for {visible(host)} has made its keys meanwhile",
                meaning="Nothing was changed.",
                hint="Type it again: the new plan uses those keys.",
                host=host,
            )
        if ssh.exists():
            _write_private(store.key(host, _SSH), ssh.read_bytes())
            ssh.unlink()
        if not api.exists():
            return None
        reference = _store_api_key(host, Secret(api.read_text("utf-8")), store)
        api.unlink()
        return reference


def is_pending(pending: Path) -> bool:
    """Tell whether a pair for SSH was made in this folder."""
    return (pending / _SSH).exists()


def _file_reference(file: Path) -> SecretRef:
    return SecretRef("file", str(file.absolute()))


def _lock_keys(store: Store) -> FileLock:
    """Lock the keys, so that two plans at once make one key."""
    return FileLock(store.keys() / ".lock", mode=0o600)


def _write_private(file: Path, text: str | bytes) -> None:
    if os.name == "nt":
        restrict_to_owner(file.parent)
    write_whole(file, [text], mode=0o600)


def restrict_to_owner(folder: Path) -> None:
    """Close a folder to others on Windows. One of %LOCALAPPDATA% is its user's alone, but WINHOST_STATE may name one
    anywhere. Raises UsageError: NotPrivate.
    """
    user = f"{os.environ.get('USERDOMAIN', '.')}\\{os.environ.get('USERNAME', '')}"
    program = Path(os.environ.get("SYSTEMROOT", r"C:\Windows"), "System32", "icacls.exe")
    arguments = [str(program), str(folder), "/inheritance:r", "/grant:r", f"{user}:(OI)(CI)F", "*S-1-5-18:(OI)(CI)F"]
    try:
        result = subprocess.run(  # noqa: S603 - Windows' own, no shell
            arguments, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError:
        result = None
    if result is None or result.returncode != 0:
        hint = "Set WINHOST_STATE to a folder of your own on a volume with access lists, or leave it unset"
        raise not_private_error(folder, "cannot be closed to other accounts", hint)
