"""Rules on secrets in clear text: the file stays on the medium, and the installed system has a copy in its logs."""

import re
from collections.abc import Iterator

from winhost.autoinstall.autoinstall_file import PLACEHOLDER, AutoinstallContext, Loc, last_key
from winhost.findings.finding import Observation

_HASH = re.compile(r"(?:\$(?:1|2[abxy]|5|6|7|y|gy)\$.+|[!*x]*)")
_LENGTHS = {"1": 22, "5": 43, "6": 86}  # characters of a hash after its salt, by crypt(5)
_CRYPT = re.compile(r"\$([156])\$(?:rounds=\d+\$)?[^$:\n]{0,16}\$([./0-9A-Za-z]*)")
_UNFILLED = re.compile(r"<[^<>]*>|_?[A-Z][A-Z0-9]*_[A-Z0-9_]*")  # a placeholder for a hash
_LEAVE_OUT = "Leave it out, and set it over SSH after the first start."
_HASHED = "Write a hash, as `openssl passwd -6` makes it, or better: keys alone."
# By the last keys of the path: the kind of the secret, and the remedy.
_KEYS = {
    ("identity", "password"): ("a password", _HASHED),
    ("user-data", "password"): ("a password", _HASHED),
    ("passwd",): ("a password", _HASHED),
    ("hashed_passwd",): ("a password", _HASHED),
    ("plain_text_passwd",): ("a password", _HASHED),
    ("chpasswd", "users", "password"): ("a password", _HASHED),
    ("chpasswd", "list"): ("a password", _HASHED),
    ("layout", "password"): ("the passphrase of the disk", _LEAVE_OUT),
    ("key",): ("the passphrase of a disk", _LEAVE_OUT),
    ("ubuntu-pro", "token"): ("a token of Ubuntu Pro", _LEAVE_OUT),
    ("ubuntu-advantage", "token"): ("a token of Ubuntu Pro", _LEAVE_OUT),
    ("auth", "password"): ("the password of a network", _LEAVE_OUT),
    ("access-points", "*", "password"): ("the password of a network", _LEAVE_OUT),
    ("consumer_secret",): ("a secret of the webhook", _LEAVE_OUT),
    ("token_secret",): ("a secret of the webhook", _LEAVE_OUT),
}
# Keys whose value is a hash.
_HASHED_KEYS = (("identity", "password"), ("user-data", "password"), ("passwd",), ("hashed_passwd",))
_PRIVATE_MEDIA = "Use media that nobody else can read, and replace it after the first start."
_SECRET_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"), "a private key"),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@]+:[^\s/@]+@"), "a password in an address"),
    (re.compile(r"\b(?:ghp_|github_pat_|glpat-|hf_|xox[bp]-)[A-Za-z0-9_-]{10,}|\bAKIA[0-9A-Z]{16}\b"), "a token"),
    (re.compile(r"(?i)\bauthorization: *(?:bearer|basic) +\S"), "a token"),
    (re.compile(r"(?i)\bchpasswd\b(?! *-e)|--password[= ]\S"), "a password in a command"),
)


def check_secrets(context: AutoinstallContext) -> Iterator[Observation]:
    """Find secrets. The findings do not quote them."""
    for loc, text in _texts(context.file.section, ()):
        names = tuple(part for part in loc if isinstance(part, str))
        if (names[-2:] in _HASHED_KEYS or names[-1:] in _HASHED_KEYS) and _is_broken(text):
            yield context.observe(loc, "not-a-hash", key=last_key(loc))
        elif by_key := _secret_by_key(names, text):
            what, mend = by_key
            code = "secret-of-install" if mend == _LEAVE_OUT else "secret"
            yield context.observe(loc, code, key=last_key(loc), what=what, mend=mend)
        elif what := next((what for pattern, what in _SECRET_PATTERNS if pattern.search(text)), ""):
            mend = _PRIVATE_MEDIA if what == "a private key" else _LEAVE_OUT
            yield context.observe(loc, "secret", key=last_key(loc), what=what, mend=mend)


def _texts(value: object, loc: Loc) -> Iterator[tuple[Loc, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*loc, str(key)))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _texts(inner, (*loc, at))
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield loc, str(value)


def _is_broken(text: str) -> bool:
    """Tell whether this is a truncated or invented hash, or a placeholder for one."""
    found = _CRYPT.fullmatch(text)
    is_hash = text.startswith(("$1$", "$5$", "$6$")) and not re.search(r"\{\{|\$\{", text)
    return _UNFILLED.fullmatch(text) is not None or (is_hash and (found is None or len(found[2]) != _LENGTHS[found[1]]))


def _secret_by_key(names: tuple[str, ...], text: str) -> tuple[str, str] | None:
    """Return the kind of secret that these keys have, and the remedy; None if they have no secret."""
    if PLACEHOLDER.fullmatch(text):
        return None
    for ending, (what, mend) in _KEYS.items():
        tail = names[-len(ending) :]
        if len(tail) == len(ending) and all(key in ("*", name) for key, name in zip(ending, tail, strict=True)):
            hashed = what == "a password" and ending != ("plain_text_passwd",) and _is_hashed(text, ending)
            return None if hashed or (ending == ("key",) and "storage" not in names) else (what, mend)
    return None


def _is_hashed(text: str, ending: tuple[str, ...]) -> bool:
    """Tell whether all passwords are hashed. Each line of chpasswd's list is `user:hash`, or `user:RANDOM` for a
    password that cloud-init makes.
    """
    if ending != ("chpasswd", "list"):
        return _HASH.fullmatch(text) is not None
    values = [line.partition(":")[2].strip() for line in text.splitlines() if ":" in line]
    return all(each in ("RANDOM", "R") or PLACEHOLDER.fullmatch(each) or _HASH.fullmatch(each) for each in values)
