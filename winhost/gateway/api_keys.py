"""The API keys: those of a plan, and changes made since. They are read again when their files change."""

import hashlib
import hmac
import logging
import secrets
import time
from pathlib import Path

from .key_lines import KeyLine, WrongKeys, counting, parse_key, parse_keys

_LOG = logging.getLogger("gateway")
# A hash that is quick to compute protects only what nobody can guess.
SHORTEST, LONGEST = 24, 512
_LARGEST = 1_048_576  # bytes of a file of keys
NO_CHANGES = hashlib.sha256(b"").hexdigest()


class ApiKeys:
    """The keys by name. Each key has one use: to call models, to read metrics, or to ask for the GPUs. hashes: of the
    keys that were not revoked.
    """

    def __init__(self, text: str, changes: str = "") -> None:
        """text: the key file of a plan; changes: the file of changes made since. Raises WrongKeys."""
        planned = parse_keys(text)
        if all(each.metrics or each.yields for each in planned):
            raise WrongKeys("no key is in it, so nobody could use the gateway (new-key NAME writes one)")
        try:
            changed = parse_keys(changes)
        except WrongKeys as wrong:
            raise WrongKeys(f"changed keys, {wrong}") from None
        self._lines = {each.name: each for each in counting(planned, changed)}
        self._hashes = [(each.name, bytes.fromhex(each.sha256)) for each in self._lines.values()]
        self.hashes = frozenset(each.sha256 for each in self._lines.values() if each.revoked is None)

    @property
    def names(self) -> list[str]:
        return list(self._lines)

    @property
    def metrics_models(self) -> frozenset[str]:
        """The models that the plan's keys for metrics name."""
        lines = (each for each in self._lines.values() if each.metrics and each.planned)
        return frozenset(name for each in lines for name in each.models or ())

    def line(self, name: str) -> KeyLine:
        return self._lines[name]

    def name_of(self, authorization: str) -> str | None:
        """The name of the key in this header, even if it was revoked or has expired; None if there is no such key. It
        is compared with every key, each time in constant time.
        """
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not SHORTEST <= len(key) <= LONGEST:
            return None
        given = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [name for name, known in self._hashes if hmac.compare_digest(given, known)]
        return matching[0] if matching else None


class KeyFiles:
    """Both key files. problem: why their last change is not in force; digest: of the changes in force; at: when they
    were read.
    """

    def __init__(self, planned: Path, changes: Path | None) -> None:
        self._files = [planned, *([changes] if changes else [])]
        self._had_changes = False
        self._seen: object = None
        self.problem, self.digest, self.at = "", "", 0.0

    def first(self, had_changes: bool = False) -> ApiKeys:
        """Read the keys at a start. had_changes: the file of changes was not empty before. Raises WrongKeys, OSError,
        UnicodeDecodeError.
        """
        self._had_changes = had_changes
        self._seen = self._marks()
        return self._read()

    def changed(self) -> ApiKeys | None:
        """Read the keys again if their files changed; None if not, or if they cannot be read, with `problem` set."""
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen, self.at = marks, time.time()
        try:
            found = self._read()
        except (WrongKeys, OSError, UnicodeDecodeError) as error:
            why = error.strerror or "" if isinstance(error, OSError) else str(error)
            self.problem = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else why
            _LOG.error("API keys stay as they were, because their files cannot be read: %s", self.problem)
            return None
        _LOG.info("API keys were read anew: %d", len(found.names))
        return found

    def _marks(self) -> list[tuple[int, ...] | None]:
        """Attributes of the files that differ once one of them was replaced or written."""
        found: list[tuple[int, ...] | None] = []
        for file in self._files:
            try:
                mark = file.stat()
            except OSError:
                found.append(None)
            else:
                found.append((mark.st_dev, mark.st_ino, mark.st_size, mark.st_mtime_ns, mark.st_ctime_ns))
        return found

    def _read(self) -> ApiKeys:
        texts = [_text(self._files[0]), *map(self._text_of_changes, self._files[1:])]
        found = ApiKeys(*texts)
        self.problem, self.at = "", time.time()
        self.digest = hashlib.sha256("".join(texts[1:]).encode("utf-8")).hexdigest()
        return found

    def _text_of_changes(self, file: Path) -> str:
        """The changes made since; empty before the first one. A file that disappeared is an error: without it, revoked
        keys would be valid again.
        """
        try:
            text = _text(file)
        except FileNotFoundError:
            if self._had_changes:
                raise WrongKeys("the file of changed keys is gone; put it back, or an empty one") from None
            return ""
        self._had_changes = True
        return text


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise WrongKeys("it has more than 1 MiB")
    return data.decode("utf-8")


def key_line(name: str, key: str, use: str = "") -> str:
    """A key's line in the file. use: empty for models, `metrics`, `metrics=MODEL,…`, or `yield`."""
    return " ".join(filter(None, (name, f"sha256:{hashlib.sha256(key.encode('utf-8')).hexdigest()}", use)))


def new_key(name: str, use: str = "") -> tuple[str, str]:
    """A new key, and its line in the file. use: its rules, as in the file. Raises WrongKeys."""
    key = "wh-" + secrets.token_urlsafe(32)
    line = key_line(name, key, use)
    try:
        parse_key(line)
    except ValueError:
        raise WrongKeys(
            "it is new-key NAME and rules, such as metrics, yield, models=MODEL,… or expires=2027-01-31T00:00:00Z, and "
            "NAME has up to 64 letters, digits, dots, - and _"
        ) from None
    return key, line
