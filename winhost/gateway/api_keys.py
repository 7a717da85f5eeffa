"""The API keys: those of the plan, and changes made since. They are read again when their files change."""

import hashlib
import hmac
import logging
import secrets
import time
from pathlib import Path

from .key_lines import KeyLine, WrongKeys, effective_keys, parse_key, parse_keys

_LOG = logging.getLogger("gateway")
# SHA-256 is quick to compute, so it protects only keys that cannot be guessed.
MIN_KEY_LENGTH, MAX_KEY_LENGTH = 24, 512
_MAX_FILE_BYTES = 1_048_576
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()


class ApiKeys:
    """The keys by name. Each key has one use: to call models, to read metrics, or to request the GPUs. hashes: of the
    keys that are not revoked.
    """

    def __init__(self, text: str, changes: str = "") -> None:
        """text: the key file of the plan; changes: the file of changes made since. Raises WrongKeys."""
        planned = parse_keys(text)
        if all(each.metrics or each.yields for each in planned):
            raise WrongKeys("no key is in it, so nobody could use the gateway (new-key NAME writes one)")
        try:
            changed = parse_keys(changes)
        except WrongKeys as wrong:
            raise WrongKeys(f"changed keys, {wrong}") from None
        self._lines = {each.name: each for each in effective_keys(planned, changed)}
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

    def find_name(self, authorization: str) -> str | None:
        """Return the name of the key in this header, even if it was revoked or has expired; None if there is no such
        key. The key is compared with every key, each time in constant time.
        """
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer" or not MIN_KEY_LENGTH <= len(key) <= MAX_KEY_LENGTH:
            return None
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        matching = [name for name, key_hash in self._hashes if hmac.compare_digest(digest, key_hash)]
        return matching[0] if matching else None


class KeyFiles:
    """Both key files. problem: why their last change is not in force; digest: of the changes in force; read_at: when
    they were read, in seconds since 1970.
    """

    def __init__(self, planned: Path, changes: Path | None) -> None:
        self._files = [planned, *([changes] if changes else [])]
        self._had_changes = False
        self._last_marks: object = None
        self.problem, self.digest, self.read_at = "", "", 0.0

    def load(self, had_changes: bool = False) -> ApiKeys:
        """Read the keys when the gateway starts. had_changes: the file of changes was not empty before. Raises
        WrongKeys, OSError, UnicodeDecodeError.
        """
        self._had_changes = had_changes
        self._last_marks = self._file_marks()
        return self._read()

    def reload_if_changed(self) -> ApiKeys | None:
        """Read the keys again if their files changed. Return None if they did not, or cannot be read: then `problem` is
        set.
        """
        marks = self._file_marks()
        if marks == self._last_marks:
            return None
        self._last_marks, self.read_at = marks, time.time()
        try:
            keys = self._read()
        except (WrongKeys, OSError, UnicodeDecodeError) as error:
            reason = error.strerror or "" if isinstance(error, OSError) else str(error)
            self.problem = "it is no text in UTF-8" if isinstance(error, UnicodeDecodeError) else reason
            _LOG.error("API keys stay as they were, because their files cannot be read: %s", self.problem)
            return None
        _LOG.info("API keys were read anew: %d", len(keys.names))
        return keys

    def _file_marks(self) -> list[tuple[int, ...] | None]:
        """Return attributes of the files that differ once a file was replaced or written."""
        marks: list[tuple[int, ...] | None] = []
        for file in self._files:
            try:
                status = file.stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return marks

    def _read(self) -> ApiKeys:
        texts = [_read_text(self._files[0]), *map(self._read_changes, self._files[1:])]
        keys = ApiKeys(*texts)
        self.problem, self.read_at = "", time.time()
        self.digest = hashlib.sha256("".join(texts[1:]).encode("utf-8")).hexdigest()
        return keys

    def _read_changes(self, file: Path) -> str:
        """Read the changes made since; empty before the first one. That the file disappears is an error: without it,
        revoked keys would be valid again.
        """
        try:
            text = _read_text(file)
        except FileNotFoundError:
            if self._had_changes:
                raise WrongKeys("the file of changed keys is missing; restore it, or create an empty one") from None
            return ""
        self._had_changes = True
        return text


def _read_text(file: Path) -> str:
    with file.open("rb") as opened:
        data = opened.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise WrongKeys("it has more than 1 MiB")
    return data.decode("utf-8")


def key_line(name: str, key: str, use: str = "") -> str:
    """Return a key's line in the file. use: empty for models, `metrics`, `metrics=MODEL,…`, or `yield`."""
    return " ".join(filter(None, (name, f"sha256:{hashlib.sha256(key.encode('utf-8')).hexdigest()}", use)))


def new_key(name: str, use: str = "") -> tuple[str, str]:
    """Generate a key. Return it, and its line in the file. use: its rules, as in the file. Raises WrongKeys."""
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
