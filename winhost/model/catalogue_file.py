"""Loads the YAML files of winhost. Parsing them took a tenth of the run time of a command, so the parsed data is
cached.

The cache has a JSON file for the hash of each YAML file, in the user's cache folder. If the cache cannot be read or
written, loading only takes longer.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winhost.model.files import write_whole

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def cache_folder() -> Path:
    """Return the cache folder of the user, or WINHOST_CACHE."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("WINHOST_CACHE")
    return Path(chosen) if chosen else user_cache_path("winhost", appauthor=False)


def load_catalogue(file: "Traversable | Path") -> Any:
    """Load a YAML file that is part of winhost, or shipped with it."""
    text = file.read_bytes()
    cached = cache_folder() / "catalogues" / f"{hashlib.sha256(text).hexdigest()}.json"
    try:
        return json.loads(cached.read_bytes())
    except (OSError, ValueError):  # missing or truncated
        return _parse_and_cache(text, cached)


def load_package_file(package: str, name: str) -> Mapping[str, Any]:
    """Load a YAML file of a package that contains a mapping."""
    from importlib.resources import files  # shell completion does not always need it

    data: Mapping[str, Any] = load_catalogue(files(package).joinpath(name))
    return data


def _parse_and_cache(text: bytes, cached: Path) -> Any:
    import yaml  # only if the cache does not have the file

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # chosen at run time
        """Reads dates as text, because JSON has none, and refuses duplicate keys, of which YAML would use the last."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - the library requires a class attribute
            first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if key.value != "<<"]
            if len(set(keys)) < len(keys):
                twice = ", ".join(sorted({key for key in keys if keys.count(key) > 1}))
                raise ValueError(f"line {node.start_mark.line + 1}: one mapping has twice: {twice}")
            return super().construct_mapping(node, deep)

    data = yaml.load(text, Loader)  # noqa: S506 - a safe loader
    written = json.dumps(data)
    if json.loads(written) == data:  # keys of JSON are text
        with suppress(OSError):
            cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(cached, [written], mode=0o600)
    return data
