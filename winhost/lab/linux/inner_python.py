"""The modules that the scripts of a simulated Linux import: os, pathlib, subprocess and the like, on its own disk.
Scripts get these instead of Python's, and those of Python that reach nothing outside a process. Every other import is
refused, so that no file, program, clock or network of this machine can be meant.
"""

import builtins
import errno
import fnmatch
import importlib.util
import io
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import PurePosixPath
from subprocess import TimeoutExpired
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.request import HTTPRedirectHandler

from winhost.core.dataclass import dataclass
from winhost.lab.linux.disk import Chain, Disk, Found, Node, fail, rows
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.windows_errors import CmdletError

PURE = (
    *("__future__", "base64", "configparser", "contextlib", "datetime", "errno", "functools", "hashlib", "ipaddress"),
    *("json", "re", "secrets", "shlex", "stat", "tarfile", "typing", "urllib.error", "urllib.parse", "zipfile"),
)
_ROOM = 1 << 30  # blocks of a file system, unless its owner says
TICKS = 100  # a second
_OUR_FAULT = 70  # a program's exit code; EX_SOFTWARE of sysexits.h


class Ended(NamedTuple):
    """The result of a program."""

    code: int = 0
    output: str = ""
    errors: str = ""


Program = Callable[[Linux, Sequence[str]], Ended | str]
Programs = Mapping[str, tuple[Sequence[str] | None, Program]]
SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/false", "/usr/sbin/nologin")


@dataclass
class InnerLinux:
    """The surroundings of a script. process: the one that asks; 1 is the machine itself, others came in by sshd.
    programs: each with the packages of which one brings it (None: every Linux has it), and what it does.
    """

    linux: Linux
    process: int
    programs: Programs

    def has_program(self, path: str) -> bool:
        if path in SHELLS or not path.startswith("/usr/bin/"):
            return path in SHELLS
        packages, _ = self.programs.get(path.removeprefix("/usr/bin/"), ((), None))
        return packages is None or any(name in self.linux.apt.installed for name in packages)

    def run_program(self, name: str, arguments: Sequence[str], given: Node | None) -> Ended:
        self.linux.stdin = given
        try:
            said = self.programs[name][1](self.linux, arguments)
        except CmdletError as error:
            code = int(error.hresults[0].rpartition(" ")[2]) if error.hresults else 1
            return Ended(code, "", f"{error.message}\n")
        except (LookupError, StopIteration, ValueError, AssertionError) as error:
            return Ended(_OUR_FAULT, "", f"The simulator cannot do this ({name}: {error!r}); please report it.\n")
        return said if isinstance(said, Ended) else Ended(0, said)


class _Status(NamedTuple):
    st_mode: int
    st_ino: int
    st_uid: int
    st_gid: int
    st_size: int
    st_mtime_ns: int
    st_rdev: int
    st_dev: int = 1

    @property
    def st_ctime(self) -> float:
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime_ns(self) -> int:
        return self.st_mtime_ns


def _status(node: Node) -> _Status:
    return _Status(
        node.kind | node.mode, node.inode, node.uid, node.gid, node.size, node.changes, node.inode, node.kind
    )


@dataclass
class _Opened:
    chain: Chain
    flags: int
    at: int = 0

    @property
    def node(self) -> Node:
        return self.chain[-1][1]


class InnerFile(io.BytesIO):
    """The file that os.fdopen makes of a number: its bytes as they were then. Writes go to the disk."""

    def __init__(self, os: "OnDisk", number: int) -> None:
        self._os, self._number = os, number
        super().__init__(self.node.data)

    def fileno(self) -> int:
        return self._number

    @property
    def node(self) -> Node:
        return self._os.opened[self._number].node

    def write(self, data: Any) -> int:
        return self._os.write(self._number, bytes(data))

    def close(self) -> None:
        if not self.closed:
            self._os.close(self._number)
        super().close()


class OnDisk:
    """The module os on a simulated disk. inside: the Linux whose disk it is, and the process that asks."""

    O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_APPEND = 0, 1, 2, 0o100, 0o200, 0o2000
    O_NONBLOCK, O_DIRECTORY, O_NOFOLLOW = 0o4000, 0o200000, 0o400000
    X_OK, SEEK_END = 1, 2

    def __init__(self) -> None:
        self.inside: InnerLinux
        self.disk: Disk
        self.opened: dict[int, _Opened] = {}
        self.environ: dict[str, str] = {}
        self.path = SimpleNamespace(
            isdir=lambda path: self._kind(path) == stat.S_IFDIR,
            exists=lambda path: self._kind(path) is not None,
            join=lambda *parts: str(PurePosixPath(*map(str, parts))),
            realpath=self._real_path,
            samestat=lambda one, other: one.st_ino == other.st_ino,
        )

    # ---- finding

    def find(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Found:
        path, base = str(path), None if dir_fd is None else self.opened[dir_fd].chain
        if base is not None and "/" not in path and path not in (".", ".."):  # as nearly all that scripts open
            node = base[-1][1].folder(path).get(path)
            if node is None or not follow or node.kind != stat.S_IFLNK:
                return Found(base, path, node)
        return self.disk.find(path, base, follow=follow)

    def _there(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Node:
        found = self.find(path, dir_fd, follow=follow)
        if found.node is None:
            fail(errno.ENOENT, str(path))
        return found.node

    def _kind(self, path: Any) -> int | None:
        try:
            return self._there(path).kind
        except OSError:
            return None

    def _real_path(self, path: Any) -> str:
        """Resolve a path; a missing one stays unchanged."""
        try:
            found = self.find(path)
        except OSError:
            return str(PurePosixPath(str(path)))
        names = [name for name, _ in found.above[1:]] + [found.name]
        return "/" + "/".join(name for name in names if name)

    # ---- looking

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> _Status:
        return _status(self._there(path, dir_fd, follow=follow_symlinks))

    def fstat(self, number: int) -> _Status:
        return _status(self.opened[number].node)

    def access(self, path: Any, mode: int) -> bool:
        if self.inside.has_program(str(path)):
            return True
        try:
            node = self._there(path)
        except OSError:
            return False
        return node.kind == stat.S_IFREG and bool(node.mode & 0o111)

    def listdir(self, path: Any) -> list[str]:
        node = self.opened[path].node if isinstance(path, int) else self._there(path)
        return list(node.folder(str(path)))

    @contextmanager
    def scandir(self, number: int) -> Iterator[list[SimpleNamespace]]:
        yield [SimpleNamespace(name=name) for name in self.listdir(number)]

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> str:
        return self._there(path, dir_fd, follow=False).data.decode()

    def statvfs(self, path: Any) -> SimpleNamespace:
        node = self._there(path)
        blocks = int(node.data or _ROOM)
        return SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bavail=blocks)

    # ---- numbers of what is open

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = self.find(path, dir_fd, follow=not flags & self.O_NOFOLLOW)
        node = found.node
        if node is None and not flags & self.O_CREAT:
            fail(errno.ENOENT, str(path))
        if node is None:
            node = self._add(found, self.disk.new(stat.S_IFREG, mode & 0o755))
        elif node.kind == stat.S_IFLNK:
            fail(errno.ENOTDIR if flags & self.O_DIRECTORY else errno.ELOOP, str(path))
        elif flags & self.O_DIRECTORY and node.kind != stat.S_IFDIR:
            fail(errno.ENOTDIR, str(path))
        return self._number(_Opened(Found(found.above, found.name, node).chain, flags, 0))

    def _number(self, opened: _Opened) -> int:
        number = max(self.opened, default=2) + 1
        self.opened[number] = opened
        return number

    def close(self, number: int) -> None:
        del self.opened[number]

    def pipe(self) -> tuple[int, int]:
        node = self.disk.new(stat.S_IFIFO)
        return self._number(_Opened([("", node)], self.O_RDONLY)), self._number(_Opened([("", node)], self.O_WRONLY))

    def fdopen(self, number: int, mode: str = "r", buffering: int = -1) -> InnerFile:
        return InnerFile(self, number)

    def lseek(self, number: int, offset: int, whence: int) -> int:
        opened = self.opened[number]
        opened.at = offset + {0: 0, 1: opened.at, 2: len(opened.node.data)}[whence]
        return opened.at

    def pread(self, number: int, size: int, offset: int) -> bytes:
        return self.opened[number].node.data[offset : offset + size]

    def write(self, number: int, data: bytes) -> int:
        opened = self.opened[number]
        node = opened.node
        at = len(node.data) if opened.flags & self.O_APPEND else opened.at
        if node.kind == stat.S_IFREG and self.disk.in_kernel(opened.chain):
            node.data, at = data, 0  # what is written to a setting of the kernel replaces it
        else:
            node.data = node.data[:at].ljust(at, b"\0") + data + node.data[at + len(data) :]
        opened.at = at + len(data)
        self._touch(node)
        return len(data)

    def ftruncate(self, number: int, size: int) -> None:
        node = self.opened[number].node
        node.data = node.data[:size]

    def fsync(self, number: int) -> None:
        """Do nothing: the disk is in memory."""

    # ---- changing

    def _add(self, found: Found, node: Node) -> Node:
        if found.node is not None:
            fail(errno.EEXIST, found.name)
        found.folder[found.name] = node
        self._touch(node)
        return node

    def _touch(self, node: Node) -> None:
        node.changes = int(self.inside.linux.now() * 1e9)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        made = self.disk.new(stat.S_IFDIR, mode & 0o755)
        self._add(self.find(path, dir_fd, follow=False), made)

    def symlink(self, to: str, path: Any, *, dir_fd: int | None = None) -> None:
        made = self.disk.new(stat.S_IFLNK, data=str(to).encode())
        self._add(self.find(path, dir_fd, follow=False), made)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        found = self.find(path, dir_fd, follow=False)
        if found.node is None:
            fail(errno.ENOENT, str(path))
        del found.folder[found.name]

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        found = self.find(path, dir_fd, follow=False)
        if found.node is None:
            fail(errno.ENOENT, str(path))
        if found.node.folder(str(path)):
            fail(errno.ENOTEMPTY, str(path))
        del found.folder[found.name]

    def rename(self, path: Any, to: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        found, there = self.find(path, src_dir_fd, follow=False), self.find(to, dst_dir_fd, follow=False)
        if found.node is None:
            fail(errno.ENOENT, str(path))
        there.folder[there.name] = found.node
        del found.folder[found.name]

    def chown(self, path: Any, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        node = self._there(path, dir_fd, follow=follow_symlinks)
        node.uid, node.gid = uid, gid

    def fchown(self, number: int, uid: int, gid: int) -> None:
        self.opened[number].node.uid, self.opened[number].node.gid = uid, gid

    def fchmod(self, number: int, mode: int) -> None:
        self.opened[number].node.mode = mode

    def setxattr(self, number: int, name: str, value: bytes) -> None:
        self.opened[number].node.attributes += (name,)

    def getxattr(self, number: int, name: str) -> bytes:
        if name not in self.opened[number].node.attributes:
            fail(errno.ENODATA, name)
        return b"1"

    # ---- the process

    def uname(self) -> SimpleNamespace:
        return SimpleNamespace(release=self.inside.linux.kernel(), machine="x86_64")

    def getpid(self) -> int:
        return self.inside.process

    def sysconf(self, name: str) -> int:
        return TICKS

    def umask(self, mask: int) -> int:
        return 0o022


class InnerPath(PurePosixPath):
    """A pathlib.Path. Each interpreter gets a class of its own, with its `os`."""

    os: OnDisk

    def _is(self, kind: int) -> bool:
        return self.os.path.exists(self) and self.os.stat(self).st_mode & 0o170000 == kind

    def exists(self) -> bool:
        return bool(self.os.path.exists(self)) or self.os.inside.has_program(str(self))

    def is_dir(self) -> bool:
        return self._is(stat.S_IFDIR)

    def is_file(self) -> bool:
        return self._is(stat.S_IFREG)

    def is_symlink(self) -> bool:
        node = self.os.disk.node(str(self))
        return node is not None and node.kind == stat.S_IFLNK

    def stat(self) -> _Status:
        return self.os.stat(self)

    def iterdir(self) -> "Iterator[InnerPath]":
        return iter([self / name for name in self.os.listdir(self)])

    def glob(self, pattern: str) -> "Iterator[InnerPath]":
        found: list[InnerPath] = [self]
        for part in pattern.split("/"):
            below = [each / name for each in found if each.is_dir() for name in self.os.listdir(each)]
            found = [each for each in below if fnmatch.fnmatchcase(each.name, part)]
        return iter(found)

    def rglob(self, pattern: str) -> "Iterator[InnerPath]":
        found = (type(self)(path) for path, _ in self.os.disk.walk(str(self)))
        return (each for each in found if fnmatch.fnmatchcase(each.name, pattern))

    def resolve(self) -> "InnerPath":
        return type(self)(self.os.path.realpath(self))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if parents:
            self.os.disk.make_folder(str(self.parent))
        if not (exist_ok and self.is_dir()):
            self.os.mkdir(self, mode)

    def rmdir(self) -> None:
        self.os.rmdir(self)

    def unlink(self) -> None:
        self.os.unlink(self)

    def rename(self, to: Any) -> None:
        self.os.rename(self, to)


class Interpreter:
    """Has modules of its own, which belong to one Linux at a time, as `on` says."""

    def __init__(self) -> None:
        self.os = OnDisk()
        self._loaded: set[str] = set()
        self._tables: dict[str, Any] = {}
        self._shims = self._made()
        refused = dict.fromkeys(("open", "exec", "eval", "compile", "input"))
        inside = {**vars(builtins), **refused, "__import__": self._import}
        self._names: dict[str, Any] = {"__name__": "agent", "__builtins__": inside, "PROGRAM": "serve()\n"}

    @contextmanager
    def on(self, inside: InnerLinux) -> Iterator["Interpreter"]:
        self.os.inside, self.os.disk = inside, inside.linux.disk
        self.os.opened.clear()
        self._names.update(self._tables)
        yield self

    def load(self, name: str) -> Mapping[str, Any]:
        """All that is defined, by one of winhost's own modules and those before: on a Linux they are one text. Its code
        is that which Python keeps beside it.
        """
        if name not in self._loaded:
            self._loaded.add(name)
            spec = importlib.util.find_spec(name)
            assert spec is not None
            exec(spec.loader.get_code(name), self._names)  # type: ignore[union-attr]  # noqa: S102 - constant text of ours
        return self._names

    def declared(self, name: str, table: str) -> Mapping[str, Any]:
        """Return the entries that a module of winhost's, and those before it, put into this table."""
        self._names[table] = self._tables.setdefault(table, self._names.get(table))
        return cast("Mapping[str, Any]", self.load(name)[table])

    def replace(self, table: str, by: Any) -> None:
        """Replace a name until another Linux has the interpreter."""
        self._tables.setdefault(table, self._names[table])
        self._names[table] = by

    def _import(self, name: str, _: Any = None, __: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.startswith("winhost."):
            # What only types are made of is not there.
            return SimpleNamespace(**{each: self.load(name).get(each) for each in fromlist})
        top = name.partition(".")[0]
        if top in self._shims:
            whole = self._shims[top]
            return getattr(whole, name.partition(".")[2]) if fromlist and "." in name else whole
        if name not in PURE:
            raise ImportError(f"{name} is not there for the scripts of a simulated Linux.")
        return importlib.import_module(name)

    def _made(self) -> dict[str, Any]:
        os = self.os
        path = type("Path", (InnerPath,), {"os": os})
        error, parse = importlib.import_module("urllib.error"), importlib.import_module("urllib.parse")
        return {
            "os": os,
            "pathlib": SimpleNamespace(Path=path),
            "time": SimpleNamespace(
                monotonic=lambda: os.inside.linux.now(),
                time=lambda: os.inside.linux.now(),
                sleep=lambda seconds: os.inside.linux.sleep(seconds),
                clock_gettime=lambda which: os.inside.linux.since_boot(),
                CLOCK_BOOTTIME=7,
            ),
            "subprocess": SimpleNamespace(Popen=self._popen, PIPE=-1, DEVNULL=-3, TimeoutExpired=TimeoutExpired),
            "pwd": SimpleNamespace(
                getpwnam=lambda name: self._account("/etc/passwd", 0, name, "getpwnam"),
                getpwuid=lambda number: self._account("/etc/passwd", 2, str(number), "getpwuid"),
            ),
            "grp": SimpleNamespace(
                getgrnam=lambda name: self._account("/etc/group", 0, name, "getgrnam"),
                getgrgid=lambda number: self._account("/etc/group", 2, str(number), "getgrgid"),
                getgrall=lambda: list(map(_named, rows(self.os.disk, "/etc/group"))),
            ),
            "fcntl": SimpleNamespace(flock=lambda *_: None, lockf=lambda *_: None, LOCK_EX=2, LOCK_NB=4),
            "shutil": SimpleNamespace(rmtree=self._remove_tree),
            "sys": SimpleNamespace(version_info=(3, 12, 3), executable="/usr/bin/python3", byteorder="little"),
            "platform": SimpleNamespace(machine=lambda: os.uname().machine),
            "signal": SimpleNamespace(SIGTERM=15, SIGKILL=9, SIGHUP=1, SIG_IGN=1, signal=lambda *_: None),
            "socket": SimpleNamespace(AF_INET=socket.AF_INET, AF_INET6=socket.AF_INET6, inet_ntop=socket.inet_ntop),
            "select": SimpleNamespace(),
            "ssl": SimpleNamespace(),
            "threading": SimpleNamespace(Thread=_thread),
            "http": SimpleNamespace(client=SimpleNamespace(HTTPException=OSError, HTTPConnection=object)),
            "urllib": SimpleNamespace(
                error=error,
                parse=parse,
                request=SimpleNamespace(HTTPRedirectHandler=HTTPRedirectHandler, Request=_no_network),
            ),
        }

    def _popen(self, command: Sequence[str], stdin: int = -3, **_: Any) -> Any:
        given = self.os.opened[stdin].node if stdin in self.os.opened else None
        done = self.os.inside.run_program(command[0].rpartition("/")[2], command[1:], given)
        communicate = lambda timeout=None: (done.output.encode(), done.errors.encode())  # noqa: E731
        return SimpleNamespace(returncode=done.code, pid=0, communicate=communicate)

    def _account(self, path: str, column: int, wanted: str, function: str) -> SimpleNamespace:
        for each in rows(self.os.disk, path):
            if each[column] == wanted:
                return _named(each)
        raise KeyError(f"{function}(): name not found: {wanted!r}")

    def _remove_tree(self, path: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self.os.stat(path, follow_symlinks=False)
        self.os.disk.remove(path)


def _named(words: list[str]) -> SimpleNamespace:
    """A line of passwd or of group."""
    number = int(words[2])
    return SimpleNamespace(pw_name=words[0], pw_uid=number, gr_name=words[0], gr_gid=number)


def _no_network(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENETUNREACH, "The simulator reaches no network.")


def _thread(target: Callable[..., object], args: Sequence[Any] = ()) -> SimpleNamespace:
    """Make a thread that runs to its end when it is started."""
    return SimpleNamespace(start=lambda: target(*args), join=lambda: None)


_FREE: list[Interpreter] = []


@contextmanager
def interpreter(inside: InnerLinux) -> Iterator[Interpreter]:
    """One that nobody else uses meanwhile: they are few, whatever the number of hosts."""
    try:
        found = _FREE.pop()
    except IndexError:
        found = Interpreter()
    try:
        with found.on(inside):
            yield found
    finally:
        _FREE.append(found)
