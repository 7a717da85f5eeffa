"""API keys and keys for metrics: a file has their names and hashes, never a key."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

_MODEL = r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}"
_LINE = re.compile(
    rf"([A-Za-z0-9._-]{{1,64}}) sha256:([0-9a-f]{{64}})(?: (metrics)(?:=({_MODEL}(?:,{_MODEL})*))?| (yield))?"
)
# A hash that is quick to compute protects only what nobody can guess.
SHORTEST, LONGEST = 24, 512


class WrongKeys(ValueError):
    """Says what is wrong with the file, without its words."""


@dataclass(frozen=True)
class MetricsScope:
    """models: whose metrics a key may read; None: all, and what has no model."""

    models: frozenset[str] | None = None


class ApiKeys:
    """Names by the hashes of their keys. A key is for models, for metrics or to ask for the GPUs, and for one alone."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._keys: list[tuple[str, bytes]] = []
        self._metrics: dict[str, MetricsScope] = {}
        self._yield: set[str] = set()
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            found = _LINE.fullmatch(line)
            if found is None:
                raise WrongKeys(
                    f"line {number} is not: NAME sha256:64 digits, or that and `metrics` or `yield` (see new-key)"
                )
            if any(found[1] == name for name, _ in self._keys):
                raise WrongKeys(f"line {number} has a name that is there already")
            self._keys.append((found[1], bytes.fromhex(found[2])))
            if found[3]:
                self._metrics[found[1]] = MetricsScope(frozenset(found[4].split(",")) if found[4] else None)
            if found[5]:
                self._yield.add(found[1])
        if len(self._keys) == len(self._metrics) + len(self._yield):
            raise WrongKeys("no key is in it, so nobody could use the gateway (new-key NAME writes one)")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self._keys]

    @property
    def metrics_models(self) -> frozenset[str]:
        """All that keys for metrics name."""
        return frozenset(name for scope in self._metrics.values() for name in scope.models or ())

    def metrics_of(self, name: str) -> MetricsScope | None:
        """None where it is a key for models."""
        return self._metrics.get(name)

    def may_yield(self, name: str) -> bool:
        return name in self._yield

    def name_of(self, authorization: str) -> str | None:
        """Whose key this header has. All are compared, each in constant time."""
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not SHORTEST <= len(key) <= LONGEST:
            return None
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [name for name, known in self._keys if hmac.compare_digest(given, known)]
        return matching[0] if matching else None


def key_line(name: str, key: str, use: str = "") -> str:
    """Its line in the file. use: empty for models, `metrics`, `metrics=MODEL,…`, or `yield`."""
    return " ".join(filter(None, (name, f"sha256:{hashlib.sha256(key.encode('utf-8')).hexdigest()}", use)))


def new_key(name: str, use: str = "") -> tuple[str, str]:
    """A key, and its line in the file. Raises WrongKeys."""
    key = "wh-" + secrets.token_urlsafe(32)
    line = key_line(name, key, use)
    if _LINE.fullmatch(line) is None:
        raise WrongKeys(
            "it is new-key NAME [metrics[=MODEL,…] or yield], and NAME has up to 64 letters, digits, dots, - and _"
        )
    return key, line
