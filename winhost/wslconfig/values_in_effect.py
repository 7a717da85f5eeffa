"""What counts of a file: the first line of each key, and what WSL makes of it."""

from collections.abc import Mapping

from winhost.wslconfig.format import WSLCONFIG, ConfigFile, ConfigLine, Dialect, parse
from winhost.wslconfig.key_values import Value, read
from winhost.wslconfig.known_keys import Key, key_of


def effective(text: str, dialect: Dialect = WSLCONFIG) -> Mapping[tuple[str, str], Value]:
    """What the file sets, by section and key as the table spells them; sizes in bytes, times in milliseconds.

    What is absent, unknown or bad is not there: WSL takes its default.
    """
    read_out = {}
    for key, line in counted(parse(text, dialect)):
        value = valid(key, line)
        if value is not None:
            read_out[key.section, key.name] = value
    return read_out


def counted(file: ConfigFile) -> list[tuple[Key, ConfigLine]]:
    """Each key with the line that counts: the first, be its value good or bad (ConfigKey::Parse keeps the result)."""
    first: dict[str, tuple[Key, ConfigLine]] = {}
    for line in file.keys:
        key = key_of(file.dialect, line.id)
        if key is not None:
            first.setdefault(str(key), (key, line))
    return list(first.values())


def valid(key: Key, line: ConfigLine) -> Value | None:
    """What WSL makes of the line; None where it keeps its default."""
    try:
        return read(key, line.value)
    except ValueError:
        return None
