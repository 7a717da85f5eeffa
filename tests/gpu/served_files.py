"""An index of Python packages (PEP 691) and a hub of one model, on loopback, from files of any size."""

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import file_digest, sha1
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name, parse_wheel_filename

from tests.hub.stand_in_index import LoopbackHandler, listed_file, listing, on_loopback

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "org/tiny"
LARGE = 1 << 20  # smaller files have the hash of git alone, as hubs have it


@dataclass(frozen=True)
class Wheel:
    """A file of the index."""

    path: Path
    sha256: str

    @property
    def name(self) -> str:
        return parse_wheel_filename(self.path.name)[0]

    @property
    def version(self) -> str:
        return str(parse_wheel_filename(self.path.name)[1])


class ServedFiles:
    """wheels: folders of them; model: a folder."""

    url = ""

    def __init__(self, wheels: list[Path], model: Path) -> None:
        self._folders, self._model = wheels, model

    @cached_property
    def wheels(self) -> list[Wheel]:
        files = sorted(path for folder in self._folders for path in folder.glob("*.whl"))
        with ThreadPoolExecutor() as pool:
            return [Wheel(path, found) for path, found in zip(files, pool.map(digest, files), strict=True)]

    @property
    def index(self) -> str:
        return f"{self.url}/simple"

    def lock(self, folder: Path, leave_out: frozenset[tuple[str, str]]) -> str:
        """Of the wheels in a folder, but for some by name and version."""
        lines = [
            f"{each.name}=={each.version} --hash=sha256:{each.sha256}"
            for each in self.wheels
            if each.path.parent == folder and (each.name, each.version) not in leave_out
        ]
        return "\n".join(lines) + "\n"

    def answer(self, path: str) -> Path | Any | None:
        """A file, or what is JSON."""
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if parts[0] == "simple":
            return self._package(canonicalize_name(parts[1]))
        if parts[0] == "packages":
            return next((each.path for each in self.wheels if each.sha256[:8] == parts[1]), None)
        if parts[:5] == ["api", "models", *MODEL.split("/"), "tree"]:
            return [self._entry(file) for file in sorted(self._model.rglob("*")) if file.is_file()]
        file = self._model.joinpath(*parts[4:])
        return file if parts[2] == "resolve" and file.is_file() else None

    def _package(self, name: str) -> Any:
        files = ((each.path, each.sha256) for each in self.wheels if each.name == name)
        return listing(name, (self._listed(*each) for each in files))

    def _listed(self, path: Path, sha256: str) -> dict[str, Any]:
        return listed_file(path.name, f"{self.url}/packages/{sha256[:8]}/{path.name}", sha256, path.stat().st_size)

    def _entry(self, file: Path) -> dict[str, Any]:
        size, path = file.stat().st_size, file.relative_to(self._model).as_posix()
        entry = {"type": "file", "path": path, "size": size}
        if size >= LARGE:
            return {**entry, "oid": "0" * 40, "lfs": {"oid": digest(file), "size": size}}
        return {**entry, "oid": sha1(b"blob %d\0" % size + file.read_bytes()).hexdigest()}


@cache
def digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def serving(files: ServedFiles) -> Iterator[ServedFiles]:
    class Handler(LoopbackHandler):
        def get(self) -> None:
            found = files.answer(self.path)
            if isinstance(found, Path):
                self._file(found)
            else:
                self.body(404 if found is None else 200, json.dumps(found).encode())

        def _file(self, path: Path) -> None:
            size, begin = path.stat().st_size, int((self.headers["Range"] or "bytes=0-")[6:].partition("-")[0])
            self.send_response(206 if begin else 200)
            self.send_header("Content-Length", str(size - begin))
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
            self.end_headers()
            with path.open("rb") as file, suppress(ConnectionError):
                file.seek(begin)
                shutil.copyfileobj(file, self.wfile, 1 << 22)

    with on_loopback(Handler) as files.url:
        yield files
