"""Count the use of each API key. The counts are kept in a file over restarts of the gateway."""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from .api_keys import EMPTY_DIGEST, KeyFiles
from .gateway_metrics import family
from .key_limits import TokenCount
from .key_lines import KeyLine, time_text

_LOG = logging.getLogger("gateway")
_MAX_FILE_BYTES = 16_777_216


@dataclass
class KeyUsage:
    """The use of a key, as written to the file. of: the hash of the key; since: the start of counting; last: the last
    request; both in seconds since 1970; refused: requests beyond its limits.
    """

    of: str
    since: int
    last: int = 0
    requests: int = 0
    refused: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class KeyUse:
    """The use of API keys by name. Another key with the same name starts at zero. had_changes: the file of changed keys
    was not empty when the counts were last written.
    """

    def __init__(self, file: "Path | None" = None) -> None:
        """file: None if the counts are not kept."""
        self._file = file
        self._usage: dict[str, KeyUsage] = {}
        self._written_text = ""
        self.had_changes = False
        if file:
            try:
                self._usage, self.had_changes = _read_file(file)
            except FileNotFoundError:
                pass
            except (OSError, ValueError, TypeError, RecursionError) as error:
                _LOG.error("what API keys used is counted anew, because %s cannot be read: %s", file, error)

    def _find_usage(self, key: KeyLine) -> KeyUsage:
        usage = self._usage.get(key.name)
        if usage is None or usage.of != key.sha256:
            usage = self._usage[key.name] = KeyUsage(key.sha256, int(time.time()))
        return usage

    def count_request(self, key: KeyLine, count: TokenCount) -> None:
        """Count one request, if an engine answered it."""
        if not count.answered:
            return
        usage = self._find_usage(key)
        usage.requests += 1
        usage.tokens_in += count.prompt_tokens
        usage.tokens_out += count.answer_tokens
        usage.last = int(time.time())

    def count_refusal(self, key: KeyLine) -> None:
        """Count a request beyond the limits of its key."""
        self._find_usage(key).refused += 1

    def write(self, files: KeyFiles) -> None:
        """Write the counts and the state of the key files, if they changed."""
        if self._file is None:
            return
        read = {"changes": files.digest, "problem": files.problem, "at": time_text(files.read_at)}
        usage = {name: asdict(each) for name, each in self._usage.items()}
        text = json.dumps({"format": 1, "read": read, "used": usage})
        if text == self._written_text:
            return
        temporary = self._file.with_name(f".{self._file.name}.new")
        try:
            temporary.write_text(text, "ascii")
            temporary.replace(self._file)
            self._written_text = text
        except OSError as error:
            _LOG.error("cannot keep what API keys used in %s: %s", self._file, error.strerror)
            with suppress(OSError):
                temporary.unlink()

    def lines(self, problem: bool) -> Iterable[str]:
        """Yield the metrics for Prometheus. problem: the key files have changed and cannot be read."""
        for name, meaning, values in (
            ("key_requests_total", "Requests that an engine answered, by key.", {"": "requests"}),
            ("key_refused_total", "Requests beyond the limits of their key.", {"": "refused"}),
            ("key_tokens_total", "Tokens of prompts (in) and answers (out), by key.", _TOKENS),
        ):
            samples = [
                ({"key": key, **({"direction": label} if label else {})}, getattr(usage, value))
                for key, usage in sorted(self._usage.items())
                for label, value in values.items()
            ]
            yield from family(name, "counter", meaning, samples)
        yield from family(
            "keys_unread", "gauge", "1 where a changed file of keys cannot be read.", [({}, int(problem))]
        )


_TOKENS: Mapping[str, str] = {"in": "tokens_in", "out": "tokens_out"}
_COUNTS = [each.name for each in fields(KeyUsage) if each.name != "of"]


def _read_file(file: Path) -> "tuple[dict[str, KeyUsage], bool]":
    """Read the counts, and whether keys had been changed. Raises OSError, ValueError, TypeError, RecursionError."""
    with file.open("rb") as opened:
        top = json.loads(opened.read(_MAX_FILE_BYTES))
    if not isinstance(top, dict) or top.get("format") != 1 or not isinstance(top.get("used"), dict):
        raise ValueError("it is not what the gateway writes")
    usage = {name: KeyUsage(**each) for name, each in top["used"].items()}
    if any(type(getattr(each, name)) is not int for each in usage.values() for name in _COUNTS):
        raise ValueError("a count is no number")
    read = top.get("read")
    return usage, isinstance(read, dict) and read.get("changes", "") not in ("", EMPTY_DIGEST)
