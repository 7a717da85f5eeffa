"""Count what each API key uses, in a file that survives a restart of the gateway."""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .api_keys import NO_CHANGES, KeyFiles
from .gateway_metrics import family
from .key_limits import TokenCount
from .key_lines import KeyLine, time_text

_LOG = logging.getLogger("gateway")
_LARGEST = 16_777_216


@dataclass
class Used:
    """The use of a key. of: the hash of the key; since: when counting began; last: the time of its last request; times
    are seconds since 1970; refused: requests beyond its limits.
    """

    of: str
    since: int
    last: int = 0
    requests: int = 0
    refused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class KeyUse:
    """The use of API keys by name. Another key with the same name begins at zero. had_changes: the file of changed keys
    was not empty when the counts were last written.
    """

    def __init__(self, file: "Path | None" = None) -> None:
        """file: None keeps nothing."""
        self._file = file
        self._used: dict[str, Used] = {}
        self._written = ""
        self.had_changes = False
        if file:
            try:
                self._used, self.had_changes = _read(file)
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, RecursionError) as error:
                _LOG.error("what API keys used is counted anew, because %s cannot be read: %s", file, error)

    def _of(self, key: KeyLine) -> Used:
        found = self._used.get(key.name)
        if found is None or found.of != key.sha256:
            found = self._used[key.name] = Used(key.sha256, int(time.time()))
        return found

    def used(self, key: KeyLine, count: TokenCount) -> None:
        """Count one request, if an engine answered it."""
        if not count.answered:
            return
        found = self._of(key)
        found.requests += 1
        found.tokens_in += count.taken_in
        found.tokens_out += count.taken_out
        found.last = int(time.time())

    def refused(self, key: KeyLine) -> None:
        """Count a request beyond the limits of its key."""
        self._of(key).refused += 1

    def write(self, files: KeyFiles) -> None:
        """Write the counts, and what was read of the key files. Does nothing if nothing changed."""
        if self._file is None:
            return
        read = {"changes": files.digest, "problem": files.problem, "at": time_text(files.at)}
        used = {name: asdict(each) for name, each in self._used.items()}
        text = json.dumps({"format": 1, "read": read, "used": used})
        if text == self._written:
            return
        beside = self._file.with_name(f".{self._file.name}.new")
        try:
            beside.write_text(text, "ascii")
            beside.replace(self._file)
            self._written = text
        except OSError as error:
            _LOG.error("cannot keep what API keys used in %s: %s", self._file, error.strerror)
            with suppress(OSError):
                beside.unlink()

    def lines(self, problem: bool) -> Iterable[str]:
        """The metrics for Prometheus. problem: the key files have changed and cannot be read."""
        for name, meaning, values in (
            ("key_requests_total", "Requests that an engine answered, by key.", {"": "requests"}),
            ("key_refused_total", "Requests beyond the limits of their key.", {"": "refused"}),
            ("key_tokens_total", "Tokens of prompts (in) and answers (out), by key.", _TOKENS),
        ):
            samples = [
                ({"key": key, **({"direction": label} if label else {})}, getattr(used, value))
                for key, used in sorted(self._used.items())
                for label, value in values.items()
            ]
            yield from family(name, "counter", meaning, samples)
        yield from family(
            "keys_unread", "gauge", "1 where a changed file of keys cannot be read.", [({}, int(problem))]
        )


_TOKENS: Mapping[str, str] = {"in": "tokens_in", "out": "tokens_out"}
_COUNTS = [each.name for each in fields(Used) if each.name != "of"]


def _read(file: Path) -> "tuple[dict[str, Used], bool]":
    """The counts, and whether keys had been changed. Raises OSError, ValueError, TypeError, RecursionError."""
    with file.open("rb") as opened:
        top = json.loads(opened.read(_LARGEST))
    if not isinstance(top, dict) or top.get("format") != 1 or not isinstance(top.get("used"), dict):
        raise ValueError("it is not what the gateway writes")
    found = {name: Used(**each) for name, each in top["used"].items()}
    if any(type(getattr(each, name)) is not int for each in found.values() for name in _COUNTS):
        raise ValueError("a count is no number")
    read = top.get("read")
    return found, isinstance(read, dict) and read.get("changes", "") not in ("", NO_CHANGES)
