"""Secrets: files contain references to them, and their values exist only between `resolve` and `reveal`.

No error that is raised here contains a value, not even in its `__context__`: it is raised after the `except` block
ends.
"""

import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable, Mapping
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.units import KiB

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

COMMAND_SECONDS = 60
"""The time limit of a `cmd:` in seconds: long enough to touch a hardware token."""
_MAX_BYTES = 64 * KiB

_FORMS = "env:NAME, file:/PATH, cmd:PROGRAM ARGUMENTS or keyring:SERVICE/USER"


class Secret:
    """A value that only `reveal` shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value. Call this where the value is handed over, and keep no copy."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is neither copied nor pickled")


@dataclass(frozen=True, repr=False)
class SecretRef:
    """A reference to a secret: an environment variable, a private file, the first line of a program's output, or the
    keyring.
    """

    scheme: str
    target: str

    @classmethod
    def parse(cls, text: object) -> "SecretRef":
        """Parse a reference. Raises ValueError that does not quote the text, because it may be the password itself."""
        if isinstance(text, cls):
            return text
        scheme, colon, target = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon or scheme not in _SCHEMES:
            raise ValueError(f"is not a secret reference: write {_FORMS}")
        if problem := _SCHEMES[scheme].problem(target):
            raise ValueError(f"is not a secret reference: {problem}")
        return cls(scheme, target)

    def resolve(self) -> Secret:
        """Read the secret now. Raises UsageError: SecretUnreadable."""
        value = _SCHEMES[self.scheme].read(self)
        if not value:
            raise self.unreadable_error("it is empty")
        return Secret(value)

    def store_in_keyring(self, value: Secret) -> bool:
        """Write a value into the keyring under this reference. Return False if no keyring works, or the value does not
        read back. Nothing is raised, because the error of a backend may contain the value.
        """
        service, _, user = self.target.rpartition("/")
        try:
            keyring = import_module("keyring")
            keyring.set_password(service, user, value.reveal())
            return bool(keyring.get_password(service, user) == value.reveal())
        except Exception:  # noqa: BLE001 - a backend raises any error of its system, and none may be shown
            return False

    @property
    def command(self) -> list[str]:
        """The program and arguments of `cmd:`."""
        return _command(self.target)

    @property
    def written(self) -> str:
        """The reference as a file has it. `str` is for people."""
        return f"{self.scheme}:{self.target}"

    def unreadable_error(self, why: str, hint: str | None = None) -> UsageError:
        """Return the error that names this reference, and nothing that was read."""
        what = f"the secret {visible(str(self))} cannot be read: {visible(why)}"
        return UsageError("SecretUnreadable", what=what, hint=None if hint is None else visible(hint))

    def __str__(self) -> str:
        # The arguments of a program may be secret themselves, such as a token.
        return f"cmd:{_command(self.target)[0]} …" if self.scheme == "cmd" else f"{self.scheme}:{self.target}"

    def __repr__(self) -> str:
        return f"SecretRef({self})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(cls.parse)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: "CoreSchema", handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        return {
            "type": "string",
            "pattern": f"^({'|'.join(_SCHEMES)}):.",
            "description": f"A secret reference, never the secret: {_FORMS}.",
            "examples": [
                "env:GPU01_PASSWORD",
                "file:~/.winhost/gpu-01",
                "cmd:sops -d gpu-01.enc",
                "keyring:winhost/svc",
            ],
        }


@dataclass(frozen=True, repr=False)
class TypedSecret(SecretRef):
    """A secret that its owner has just typed. No file refers to it, and it exists only in this process."""

    value: Secret

    def resolve(self) -> Secret:
        return self.value


@dataclass(frozen=True)
class _Scheme:
    problem: Callable[[str], str | None]
    """Return the fault of a target, in words that do not quote it."""
    read: Callable[[SecretRef], str]


def _variable_problem(target: str) -> str | None:
    named = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", target)
    return None if named else "env: is followed by the name of a variable (letters, digits, _)"


def _read_variable(ref: SecretRef) -> str:
    value = os.environ.get(ref.target)
    if value is None:
        # The value is typed after the command, so that it is not in the shell's history.
        mend = f"$env:{ref.target} = Read-Host" if os.name == "nt" else f"read -rs {ref.target}; export {ref.target}"
        raise ref.unreadable_error("the environment variable is not set", f"In the shell that runs winhost: {mend}")
    return value


def _file_problem(target: str) -> str | None:
    # A relative path would be another file in each folder that winhost is called from.
    is_absolute = target.isprintable() and (target.startswith("~") or PurePath(target).is_absolute())
    return None if is_absolute else "file: is followed by an absolute path, or one that starts with ~/"


def _read_file(ref: SecretRef) -> str:
    try:
        path = Path(ref.target).expanduser()
        if not path.is_file():
            raise ref.unreadable_error("there is no such file")
        with path.open("rb") as file:
            _refuse_shared(ref, os.fstat(file.fileno()).st_mode)
            data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ref.unreadable_error(f"it has more than {_MAX_BYTES // KiB} KiB, which no secret has")
    except RuntimeError:
        raise ref.unreadable_error("there is no such home folder") from None
    except OSError as error:
        raise ref.unreadable_error(error.strerror or type(error).__name__) from None
    return re.sub(r"\r?\n\Z", "", _text(ref, data))


def _refuse_shared(ref: SecretRef, mode: int) -> None:
    # On Windows every file has mode 0o666; its access lists are not checked here.
    if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
        raise ref.unreadable_error("others may open the file", f"chmod 600 {shlex.quote(ref.target)}")


def _command(target: str) -> list[str]:
    """Parse program and arguments. Raises ValueError."""
    if target.startswith("["):
        listed = json.loads(target)
        if not all(isinstance(word, str) for word in listed):
            raise ValueError("a word is not text")
        return list(listed)
    lexer = shlex.shlex(target, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    # A backslash is part of a path on Windows, not an escape.
    lexer.escape = "" if os.name == "nt" else "\\"
    return list(lexer)


def _command_problem(target: str) -> str | None:
    try:
        command = _command(target)
    except (ValueError, RecursionError):
        command = []
    can_run = command and command[0] and all(word.isprintable() for word in command)
    return None if can_run else 'cmd: is followed by a program and its arguments, as words or as a JSON list ["…"]'


def _read_command(ref: SecretRef) -> str:
    """Return the first line of the program's output. Its stderr is dropped, because it may contain the secret."""
    command = _command(ref.target)
    why = ""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own program, no shell
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"{command[0]} did not end within {COMMAND_SECONDS} seconds"
    except OSError as error:
        why = f"{command[0]} cannot be started ({error.strerror})"
    if why:
        raise ref.unreadable_error(why)
    if done.returncode != 0:
        raise ref.unreadable_error(
            f"{command[0]} ended with exit code {done.returncode}", "run it by hand to see what it says"
        )
    return _text(ref, done.stdout.split(b"\n", 1)[0]).removesuffix("\r")


def _text(ref: SecretRef, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass  # this exception contains the bytes, so it must end before another one is raised
    raise ref.unreadable_error("it is not UTF-8 text")


def _keyring_problem(target: str) -> str | None:
    service, _, user = target.rpartition("/")
    return None if service and user else "keyring: is followed by SERVICE/USER"


def _read_keyring(ref: SecretRef) -> str:
    service, _, user = ref.target.rpartition("/")
    try:
        keyring = import_module("keyring")
        value = keyring.get_password(service, user)
    except ImportError:
        raise ref.unreadable_error("keyring support is not installed", "pip install 'winhost[keyring]'") from None
    except import_module("keyring.errors").KeyringError as error:
        raise ref.unreadable_error(f"the keyring refused ({type(error).__name__})", "keyring diagnose") from None
    if value is None:
        mend = f"keyring set {shlex.quote(service)} {shlex.quote(user)}"
        raise ref.unreadable_error("the keyring has no such entry", mend)
    return str(value)


def is_loopback(host: str) -> bool:
    """Tell whether this name or address is this machine's own, so that a secret may be sent there without TLS."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


_SCHEMES: Mapping[str, _Scheme] = {
    "env": _Scheme(_variable_problem, _read_variable),
    "file": _Scheme(_file_problem, _read_file),
    "cmd": _Scheme(_command_problem, _read_command),
    "keyring": _Scheme(_keyring_problem, _read_keyring),
}
