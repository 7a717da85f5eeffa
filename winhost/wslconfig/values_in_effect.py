"""Which values of a file take effect: the first line of each key counts, if WSL can read its value."""

from collections.abc import Mapping

from winhost.wslconfig.format import WSLCONFIG, ConfigFile, ConfigLine, Dialect, parse
from winhost.wslconfig.key_values import Value, read
from winhost.wslconfig.known_keys import Key, key_of


def effective(text: str, dialect: Dialect = WSLCONFIG) -> Mapping[tuple[str, str], Value]:
    """What the file sets, by section and key as the table spells them; sizes in bytes, times in milliseconds.

    Absent, unknown and invalid keys are left out: WSL takes its default.
    """
    read_out = {}
    for key, line in counted(parse(text, dialect)):
        value = valid(key, line)
        if value is not None:
            read_out[key.section, key.name] = value
    return read_out


def counted(file: ConfigFile) -> list[tuple[Key, ConfigLine]]:
    """Each key with the line that counts: the first, valid or not (ConfigKey::Parse keeps the result)."""
    first: dict[str, tuple[Key, ConfigLine]] = {}
    for line in file.keys:
        key = key_of(file.dialect, line.id)
        if key is not None:
            first.setdefault(str(key), (key, line))
    return list(first.values())


def valid(key: Key, line: ConfigLine) -> Value | None:
    """The value that WSL reads; None for an invalid one, where WSL keeps its default."""
    try:
        return read(key, line.value)
    except ValueError:
        return None
