"""Keys that winhost makes if the user names none: an SSH key pair for the Linux of a host, and an API key for its
models.

Each host has its own keys, in the private state folder of the user. They stay there after a rollback, so that the host
gets the same keys when it is planned again. Deleted keys are made anew. While the user may still decline a plan, new
keys are in a folder `pending` of that plan; `store_pending` moves them to the state folder.
"""

import getpass
import os
import re
import secrets
import subprocess
from pathlib import Path

from filelock import FileLock

from winhost.connect.own_key import public_key_line
from winhost.core.dataclass import dataclass
from winhost.engine.store import Store, not_private_error
from winhost.model.errors import UsageError, visible
from winhost.model.files import write_whole
from winhost.model.fleet import Host, Ssh
from winhost.model.secrets import Secret, SecretRef

SERVICE = "winhost/api-key"  # the first part of the name in a keyring, before the host
_SSH, _API, _REFERENCE = "ssh", "api-key", "api-key-at"
_LONGEST_NAME = 64  # characters of a key's name that the gateway accepts


@dataclass(frozen=True)
class SshKey:
    """An SSH key pair. line: the public key, for the Linux; key: a reference to the private key; is_managed: winhost
    made the pair.
    """

    line: str
    key: SecretRef
    is_managed: bool


@dataclass(frozen=True)
class ApiKey:
    """An API key. name: of its user; key: a reference to it; created: the key itself, if it was made just now."""

    name: str
    key: SecretRef
    created: Secret | None = None


# ---- SSH


def ssh_key(host: str, configured: Ssh | None, store: Store | None = None, pending: Path | None = None) -> SshKey:
    """Return the key pair for the Linux of a host: the one of fleet.yaml, else the one that winhost made for this host,
    which is made now if there is none.

    Raises UsageError: NoPublicHalf, SecretUnreadable, NoStore, NotPrivate.
    """
    if configured is not None and configured.key is not None:
        return SshKey(
            public_key_line(host, configured.key, configured.position_of("key")), configured.key, is_managed=False
        )
    store = store or Store()
    file = store.key(host, _SSH)
    with _lock_keys(store):
        if pending and not file.exists():
            file = pending / _SSH
        if not file.exists():
            _write_private(file, _new_private_key())
    reference = _file_reference(file)
    return SshKey(f"{public_key_line(host, reference, str(file))} winhost", reference, is_managed=True)


def with_ssh_key(host: Host, store: Store | None = None) -> Host:
    """Return the host with winhost's own key for its Linux, if fleet.yaml names none and there is one."""
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
    """Return the API key that winhost made for a host, if it made one. Raises UsageError: KeyLost."""
    store = store or Store()
    file, reference_file = store.key(host, _API), store.key(host, _REFERENCE)
    if file.exists():
        return ApiKey(_user_name(), _file_reference(file))
    return ApiKey(_user_name(), _read_reference(reference_file)) if reference_file.exists() else None


def api_key(host: str, store: Store | None = None, pending: Path | None = None) -> ApiKey:
    """Return the API key of this user for a host. It is made now if there is none.

    It is stored in the system's keyring if one works, else in a file. If WINHOST_STATE names the state folder, it is
    always a file there. Raises UsageError: NoStore, NotPrivate.
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
    if "WINHOST_STATE" not in os.environ and reference.store_in_keyring(key):
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
    """Move the keys of this folder to the state. Returns a reference to the API key, if one was among them.

    Raises UsageError (KeysMadeMeanwhile) if another plan has made keys for this host since.
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
    """Tell whether this folder has a new SSH key pair."""
    return (pending / _SSH).exists()


def _file_reference(file: Path) -> SecretRef:
    return SecretRef("file", str(file.absolute()))


def _lock_keys(store: Store) -> FileLock:
    """Lock the keys, so that two concurrent plans make one key."""
    return FileLock(store.keys() / ".lock", mode=0o600)


def _write_private(file: Path, text: str | bytes) -> None:
    if os.name == "nt":
        restrict_to_owner(file.parent)
    write_whole(file, [text], mode=0o600)


def restrict_to_owner(folder: Path) -> None:
    """Let only the user open a folder on Windows. A folder in %LOCALAPPDATA% is private already, but WINHOST_STATE may
    name any folder. Raises UsageError: NotPrivate.
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
