"""API keys: a file has their names and hashes, never a key."""

import hashlib
import hmac
import re
import secrets

_LINE = re.compile(r"([A-Za-z0-9._-]{1,64}) sha256:([0-9a-f]{64})")
# A hash that is quick to compute protects only what nobody can guess.
SHORTEST, LONGEST = 24, 512


class WrongKeys(ValueError):
    """Says what is wrong with the file, without its words."""


class ApiKeys:
    """Names by the hashes of their keys."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._keys: list[tuple[str, bytes]] = []
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line)
            if found is None:
                raise WrongKeys(f"line {number} is not: NAME sha256:64 digits (new-key NAME writes one)")
            if any(found[1] == name for name, _ in self._keys):
                raise WrongKeys(f"line {number} has a name that is there already")
            self._keys.append((found[1], bytes.fromhex(found[2])))
        if not self._keys:
            raise WrongKeys("no key is in it, so nobody could use the gateway (new-key NAME writes one)")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._keys]

    def name_of(self, authorization: str) -> str | None:
        """Whose key this header has. All are compared, each in constant time."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not SHORTEST <= len(key) <= LONGEST:
            return None
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [name for name, known in self._keys if hmac.compare_digest(given, known)]
        return matching[0] if matching else None


def new_key(name: str) -> tuple[str, str]:
    """A key, and its line in the file. Raises WrongKeys."""
    key = "wh-" + secrets.token_urlsafe(32)
    line = f"{name} sha256:{hashlib.sha256(key.encode('ascii')).hexdigest()}"
    if _LINE.fullmatch(line) is None:
        raise WrongKeys("a name has up to 64 letters, digits, dots, dashes and underscores")
    return key, line
