"""The file system of a simulated Linux, in memory: it is copied with its machine, and no real one is ever touched."""

import errno
import hashlib
import stat
from collections.abc import Iterator
from typing import Any, NoReturn

from winhost.core.dataclass import dataclass

_MOST_LINKS = 40
_MODES = {stat.S_IFDIR: 0o755, stat.S_IFLNK: 0o777}


@dataclass(eq=False)
class Node:
    """kind: as stat has it. data: the bytes of a file, or where a link leads; entries: what is in a folder."""

    kind: int
    inode: int
    mode: int
    uid: int = 0
    gid: int = 0
    data: bytes = b""
    entries: dict[str, "Node"] | None = None
    attributes: tuple[str, ...] = ()
    changes: int = 0
    told: tuple[int, str] | None = None
    """Size and hash of a file whose bytes nobody has."""

    def copy(self) -> "Node":
        made = Node(self.kind, self.inode, self.mode, self.uid, self.gid, self.data)
        made.attributes, made.changes, made.told = self.attributes, self.changes, self.told
        if self.entries is not None:
            made.entries = {name: each.copy() for name, each in self.entries.items()}
        return made

    @property
    def size(self) -> int:
        return self.told[0] if self.told else len(self.data)

    @property
    def sha256(self) -> str:
        return self.told[1].removeprefix("sha256:") if self.told else hashlib.sha256(self.data).hexdigest()

    def folder(self, path: str = "") -> dict[str, "Node"]:
        """Return the entries of a folder. Raises OSError where it is no folder."""
        if self.entries is None:
            fail(errno.ENOTDIR, path)
        return self.entries


Place = list[tuple[str, Node]]  # from the root on


@dataclass
class Found:
    """above: the folder that it is in, or would be."""

    above: Place
    name: str
    node: Node | None

    @property
    def folder(self) -> dict[str, Node]:
        return self.above[-1][1].folder()

    @property
    def place(self) -> Place:
        assert self.node is not None
        return [*self.above, (self.name, self.node)] if self.name else self.above


def fail(number: int, path: object) -> NoReturn:
    """Raises OSError."""
    import os

    raise OSError(number, os.strerror(number), path)


class Disk:
    """Paths are absolute, unless they say from where."""

    def __init__(self) -> None:
        self._inodes = 1
        self.root = Node(stat.S_IFDIR, 1, 0o755, entries={})

    def __deepcopy__(self, memo: dict[int, Any]) -> "Disk":
        made = Disk()
        made._inodes, made.root = self._inodes, self.root.copy()
        return made

    def new(self, kind: int, mode: int | None = None, data: bytes = b"") -> Node:
        self._inodes += 1
        mode = _MODES.get(kind, 0o644) if mode is None else mode
        return Node(kind, self._inodes, mode, data=data, entries={} if kind == stat.S_IFDIR else None)

    def find(self, path: str, base: Place | None = None, *, follow: bool = True) -> Found:
        """Raises OSError where its folder is not there, or none."""
        root: Place = [("", self.root)]
        place = root if base is None or path.startswith("/") else list(base)
        parts, links = [part for part in path.split("/") if part not in ("", ".")], 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                place = place[:-1] or root
                continue
            node = place[-1][1].folder(path).get(part)
            if node is None and not parts:
                return Found(place, part, None)
            if node is None:
                fail(errno.ENOENT, path)
            if node.kind == stat.S_IFLNK and (parts or follow):
                links += 1
                if links > _MOST_LINKS:
                    fail(errno.ELOOP, path)
                to = node.data.decode()
                place = root if to.startswith("/") else place
                parts = [each for each in to.split("/") if each not in ("", ".")] + parts
            elif not parts:
                return Found(place, part, node)
            else:
                place = [*place, (part, node)]
        return Found(place, "", place[-1][1])

    @staticmethod
    def in_kernel(place: Place) -> bool:
        """It is a setting of the kernel, not a file of any disk."""
        return [name for name, _ in place[1:3]] == ["proc", "sys"]

    # ---- as the simulator itself looks at it and changes it

    def node(self, path: str, *, follow: bool = False) -> Node | None:
        try:
            return self.find(path, follow=follow).node
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """None where there is no such file."""
        node = self.node(path, follow=True)
        return node.data.decode() if node is not None and node.kind == stat.S_IFREG else None

    def names(self, folder: str) -> list[str]:
        node = self.node(folder, follow=True)
        return sorted(node.entries) if node is not None and node.entries is not None else []

    def make_folder(self, path: str) -> dict[str, Node]:
        """Make a folder and its parents."""
        here = self.root
        for part in path.strip("/").split("/"):
            here = here.folder().setdefault(part, self.new(stat.S_IFDIR)) if part else here
        return here.folder()

    def put(self, path: str, node: Node) -> Node:
        folder, _, name = path.rpartition("/")
        self.make_folder(folder)[name] = node
        return node

    def write(self, path: str, text: str, mode: int = 0o644) -> Node:
        return self.put(path, self.new(stat.S_IFREG, mode, text.encode()))

    def link(self, path: str, to: str) -> Node:
        return self.put(path, self.new(stat.S_IFLNK, data=to.encode()))

    def remove(self, path: str) -> None:
        """A file, or a folder with all that is in it; that it is not there is as good."""
        if self.node(path) is not None:
            found = self.find(path, follow=False)
            del found.folder[found.name]

    def size(self) -> int:
        """Bytes of all files."""
        return sum(node.size for _, node in self.walk(""))

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """All that is below a folder."""
        node = self.node(path, follow=True)
        for name, each in sorted((node.entries or {}).items()) if node is not None else ():
            yield f"{path}/{name}", each
            if each.entries is not None:
                yield from self.walk(f"{path}/{name}")
