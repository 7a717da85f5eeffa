"""Our own YAML files of data, parsed once for each content: parsing them took a tenth of the run time of a command.

What was parsed is kept as JSON in the user's cache, under the hash of the file. A cache that cannot be written or read
costs time and nothing else.
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
    """The user's own; WINHOST_CACHE overrides it."""
    from platformdirs import user_cache_path

    chosen = os.environ.get("WINHOST_CACHE")
    return Path(chosen) if chosen else user_cache_path("winhost", appauthor=False)


def load_catalogue(file: "Traversable | Path") -> Any:
    """The data of a YAML file that is part of winhost, or shipped with it."""
    text = file.read_bytes()
    kept = cache_folder() / "catalogues" / f"{hashlib.sha256(text).hexdigest()}.json"
    try:
        return json.loads(kept.read_bytes())
    except (OSError, ValueError):  # not there yet, or cut short
        return _parse_and_cache(text, kept)


def load_package_file(package: str, name: str) -> Mapping[str, Any]:
    """The data of a YAML file in a package: a mapping."""
    from importlib.resources import files  # which a tab may do without

    read: Mapping[str, Any] = load_catalogue(files(package).joinpath(name))
    return read


def _parse_and_cache(text: bytes, kept: Path) -> Any:
    import yaml  # only where the cache has nothing

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # which of the two is known late
        """Leaves dates as text, because JSON has none, and refuses a key that stands twice, whose first YAML drops."""

        yaml_implicit_resolvers = {  # noqa: RUF012 - as the library wants it
            first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if key.value != "<<"]
            if len(set(keys)) < len(keys):
                twice = ", ".join(sorted({key for key in keys if keys.count(key) > 1}))
                raise ValueError(f"line {node.start_mark.line + 1}: one mapping has twice: {twice}")
            return super().construct_mapping(node, deep)

    data = yaml.load(text, Loader)  # noqa: S506 - a safe one
    written = json.dumps(data)
    if json.loads(written) == data:  # keys of JSON are text
        with suppress(OSError):
            kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(kept, [written], mode=0o600)
    return data
