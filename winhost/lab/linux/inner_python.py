"""Runs the scripts of a simulated Linux with replacements for os, pathlib, subprocess and others, on its own disk.

Scripts can import these replacements, and modules of Python that do not reach outside the process. Any other import is
refused, so that a script can never reach files, programs, the clock or the network of this computer.
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
from winhost.lab.linux.disk import Chain, Disk, Node, PathLookup, raise_os_error, rows
from winhost.lab.linux.linux_machine import Linux
from winhost.lab.physics.windows_errors import CmdletError

SAFE_MODULES = (
    *("__future__", "base64", "configparser", "contextlib", "datetime", "errno", "functools", "hashlib", "ipaddress"),
    *("json", "re", "secrets", "shlex", "stat", "tarfile", "typing", "urllib.error", "urllib.parse", "zipfile"),
)
_FREE_BLOCKS = 1 << 30  # of a file system, unless the data of its mount point is another number
TICKS = 100  # clock ticks per second
_EX_SOFTWARE = 70  # a program's exit code; EX_SOFTWARE of sysexits.h


class ProgramResult(NamedTuple):
    """The result of a program."""

    code: int = 0
    output: str = ""
    errors: str = ""


Program = Callable[[Linux, Sequence[str]], ProgramResult | str]
Programs = Mapping[str, tuple[Sequence[str] | None, Program]]
SHELLS = ("/bin/sh", "/bin/bash", "/usr/bin/bash", "/bin/false", "/usr/sbin/nologin")


@dataclass
class InnerLinux:
    """The environment of a script. process: its process id; 1 for the machine itself, others are sshd's.

    programs: each with the packages that contain it (None: part of each Linux), and the function that runs it.
    """

    linux: Linux
    process: int
    programs: Programs

    def has_program(self, path: str) -> bool:
        if path in SHELLS or not path.startswith("/usr/bin/"):
            return path in SHELLS
        packages, _ = self.programs.get(path.removeprefix("/usr/bin/"), ((), None))
        return packages is None or any(name in self.linux.apt.installed for name in packages)

    def run_program(self, name: str, arguments: Sequence[str], stdin: Node | None) -> ProgramResult:
        self.linux.stdin = stdin
        try:
            result = self.programs[name][1](self.linux, arguments)
        except CmdletError as error:
            code = int(error.hresults[0].rpartition(" ")[2]) if error.hresults else 1
            return ProgramResult(code, "", f"{error.message}\n")
        except (LookupError, StopIteration, ValueError, AssertionError) as error:
            return ProgramResult(
                _EX_SOFTWARE, "", f"The simulator cannot do this ({name}: {error!r}); please report it.\n"
            )
        return result if isinstance(result, ProgramResult) else ProgramResult(0, result)


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
        node.kind | node.mode, node.inode, node.uid, node.gid, node.size, node.mtime_ns, node.inode, node.kind
    )


@dataclass
class _Opened:
    chain: Chain
    flags: int
    offset: int = 0

    @property
    def node(self) -> Node:
        return self.chain[-1][1]


class InnerFile(io.BytesIO):
    """The result of os.fdopen. It reads the contents as of its opening; writes go to the disk."""

    def __init__(self, os: "SimulatedOs", number: int) -> None:
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


class SimulatedOs:
    """The module os on a simulated disk. inside: the environment of the script that uses it."""

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

    # ---- paths

    def find(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> PathLookup:
        path, base = str(path), None if dir_fd is None else self.opened[dir_fd].chain
        if base is not None and "/" not in path and path not in (".", ".."):  # the usual case, made fast
            node = base[-1][1].folder(path).get(path)
            if node is None or not follow or node.kind != stat.S_IFLNK:
                return PathLookup(base, path, node)
        return self.disk.find(path, base, follow=follow)

    def _require_node(self, path: Any, dir_fd: int | None = None, *, follow: bool = True) -> Node:
        found = self.find(path, dir_fd, follow=follow)
        if found.node is None:
            raise_os_error(errno.ENOENT, str(path))
        return found.node

    def _kind(self, path: Any) -> int | None:
        try:
            return self._require_node(path).kind
        except OSError:
            return None

    def _real_path(self, path: Any) -> str:
        """Resolve a path. One that does not exist stays unchanged."""
        try:
            found = self.find(path)
        except OSError:
            return str(PurePosixPath(str(path)))
        names = [name for name, _ in found.above[1:]] + [found.name]
        return "/" + "/".join(name for name in names if name)

    # ---- reads

    def stat(self, path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> _Status:
        return _status(self._require_node(path, dir_fd, follow=follow_symlinks))

    def fstat(self, number: int) -> _Status:
        return _status(self.opened[number].node)

    def access(self, path: Any, mode: int) -> bool:
        if self.inside.has_program(str(path)):
            return True
        try:
            node = self._require_node(path)
        except OSError:
            return False
        return node.kind == stat.S_IFREG and bool(node.mode & 0o111)

    def listdir(self, path: Any) -> list[str]:
        node = self.opened[path].node if isinstance(path, int) else self._require_node(path)
        return list(node.folder(str(path)))

    @contextmanager
    def scandir(self, number: int) -> Iterator[list[SimpleNamespace]]:
        yield [SimpleNamespace(name=name) for name in self.listdir(number)]

    def readlink(self, path: Any, *, dir_fd: int | None = None) -> str:
        return self._require_node(path, dir_fd, follow=False).data.decode()

    def statvfs(self, path: Any) -> SimpleNamespace:
        node = self._require_node(path)
        blocks = int(node.data or _FREE_BLOCKS)
        return SimpleNamespace(f_frsize=4096, f_blocks=blocks, f_bavail=blocks)

    # ---- file descriptors

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = self.find(path, dir_fd, follow=not flags & self.O_NOFOLLOW)
        node = found.node
        if node is None and not flags & self.O_CREAT:
            raise_os_error(errno.ENOENT, str(path))
        if node is None:
            node = self._add_node(found, self.disk.new(stat.S_IFREG, mode & 0o755))
        elif node.kind == stat.S_IFLNK:
            raise_os_error(errno.ENOTDIR if flags & self.O_DIRECTORY else errno.ELOOP, str(path))
        elif flags & self.O_DIRECTORY and node.kind != stat.S_IFDIR:
            raise_os_error(errno.ENOTDIR, str(path))
        return self._register(_Opened(PathLookup(found.above, found.name, node).chain, flags, 0))

    def _register(self, opened: _Opened) -> int:
        number = max(self.opened, default=2) + 1
        self.opened[number] = opened
        return number

    def close(self, number: int) -> None:
        del self.opened[number]

    def pipe(self) -> tuple[int, int]:
        node = self.disk.new(stat.S_IFIFO)
        return self._register(_Opened([("", node)], self.O_RDONLY)), self._register(
            _Opened([("", node)], self.O_WRONLY)
        )

    def fdopen(self, number: int, mode: str = "r", buffering: int = -1) -> InnerFile:
        return InnerFile(self, number)

    def lseek(self, number: int, position: int, whence: int) -> int:
        opened = self.opened[number]
        opened.offset = position + {0: 0, 1: opened.offset, 2: len(opened.node.data)}[whence]
        return opened.offset

    def pread(self, number: int, size: int, offset: int) -> bytes:
        return self.opened[number].node.data[offset : offset + size]

    def write(self, number: int, data: bytes) -> int:
        opened = self.opened[number]
        node = opened.node
        offset = len(node.data) if opened.flags & self.O_APPEND else opened.offset
        if node.kind == stat.S_IFREG and self.disk.is_kernel_setting(opened.chain):
            node.data, offset = data, 0  # writing to a setting of the kernel replaces its value
        else:
            node.data = node.data[:offset].ljust(offset, b"\0") + data + node.data[offset + len(data) :]
        opened.offset = offset + len(data)
        self._set_mtime(node)
        return len(data)

    def ftruncate(self, number: int, size: int) -> None:
        node = self.opened[number].node
        node.data = node.data[:size]

    def fsync(self, number: int) -> None:
        """Do nothing: the disk is in memory."""

    # ---- changes

    def _add_node(self, found: PathLookup, node: Node) -> Node:
        if found.node is not None:
            raise_os_error(errno.EEXIST, found.name)
        found.folder[found.name] = node
        self._set_mtime(node)
        return node

    def _set_mtime(self, node: Node) -> None:
        node.mtime_ns = int(self.inside.linux.now() * 1e9)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        node = self.disk.new(stat.S_IFDIR, mode & 0o755)
        self._add_node(self.find(path, dir_fd, follow=False), node)

    def symlink(self, to: str, path: Any, *, dir_fd: int | None = None) -> None:
        node = self.disk.new(stat.S_IFLNK, data=str(to).encode())
        self._add_node(self.find(path, dir_fd, follow=False), node)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        found = self.find(path, dir_fd, follow=False)
        if found.node is None:
            raise_os_error(errno.ENOENT, str(path))
        del found.folder[found.name]

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        found = self.find(path, dir_fd, follow=False)
        if found.node is None:
            raise_os_error(errno.ENOENT, str(path))
        if found.node.folder(str(path)):
            raise_os_error(errno.ENOTEMPTY, str(path))
        del found.folder[found.name]

    def rename(self, path: Any, to: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        found, target = self.find(path, src_dir_fd, follow=False), self.find(to, dst_dir_fd, follow=False)
        if found.node is None:
            raise_os_error(errno.ENOENT, str(path))
        target.folder[target.name] = found.node
        del found.folder[found.name]

    def chown(self, path: Any, uid: int, gid: int, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> None:
        node = self._require_node(path, dir_fd, follow=follow_symlinks)
        node.uid, node.gid = uid, gid

    def fchown(self, number: int, uid: int, gid: int) -> None:
        self.opened[number].node.uid, self.opened[number].node.gid = uid, gid

    def fchmod(self, number: int, mode: int) -> None:
        self.opened[number].node.mode = mode

    def setxattr(self, number: int, name: str, value: bytes) -> None:
        self.opened[number].node.attributes += (name,)

    def getxattr(self, number: int, name: str) -> bytes:
        if name not in self.opened[number].node.attributes:
            raise_os_error(errno.ENODATA, name)
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
    """A pathlib.Path. Each interpreter has its own subclass, with its `os`."""

    os: SimulatedOs

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
    """Python modules and loaded scripts, which are bound to one Linux at a time."""

    def __init__(self) -> None:
        self.os = SimulatedOs()
        self._loaded_modules: set[str] = set()
        self._original_values: dict[str, Any] = {}
        self._shims = self._make_shims()
        refused = dict.fromkeys(("open", "exec", "eval", "compile", "input"))
        inside = {**vars(builtins), **refused, "__import__": self._import}
        self._globals: dict[str, Any] = {"__name__": "agent", "__builtins__": inside, "PROGRAM": "serve()\n"}

    @contextmanager
    def bind(self, inside: InnerLinux) -> Iterator["Interpreter"]:
        self.os.inside, self.os.disk = inside, inside.linux.disk
        self.os.opened.clear()
        self._globals.update(self._original_values)
        yield self

    def load(self, name: str) -> Mapping[str, Any]:
        """Load one of winhost's modules, and return all names that are defined so far: on a Linux the modules are one
        text, with one namespace. Python's compiled code of the module is used.
        """
        if name not in self._loaded_modules:
            self._loaded_modules.add(name)
            spec = importlib.util.find_spec(name)
            assert spec is not None
            exec(spec.loader.get_code(name), self._globals)  # type: ignore[union-attr]  # noqa: S102 - constant text of ours
        return self._globals

    def load_table(self, name: str, table: str) -> Mapping[str, Any]:
        """Load a module, and return the table with the entries of this module and those before it."""
        self._globals[table] = self._original_values.setdefault(table, self._globals.get(table))
        return cast("Mapping[str, Any]", self.load(name)[table])

    def replace(self, table: str, value: Any) -> None:
        """Replace a name until the interpreter is bound to another Linux."""
        self._original_values.setdefault(table, self._globals[table])
        self._globals[table] = value

    def _import(self, name: str, _: Any = None, __: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name.startswith("winhost."):
            # Names that are only used in type annotations may be missing.
            return SimpleNamespace(**{each: self.load(name).get(each) for each in fromlist})
        package_name = name.partition(".")[0]
        if package_name in self._shims:
            module = self._shims[package_name]
            return getattr(module, name.partition(".")[2]) if fromlist and "." in name else module
        if name not in SAFE_MODULES:
            raise ImportError(f"Scripts of a simulated Linux cannot import {name}.")
        return importlib.import_module(name)

    def _make_shims(self) -> dict[str, Any]:
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
                clock_gettime=lambda which: os.inside.linux.uptime(),
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
                getgrall=lambda: list(map(_account_entry, rows(self.os.disk, "/etc/group"))),
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
                request=SimpleNamespace(HTTPRedirectHandler=HTTPRedirectHandler, Request=_refuse_network),
            ),
        }

    def _popen(self, command: Sequence[str], stdin: int = -3, **_: Any) -> Any:
        stdin_node = self.os.opened[stdin].node if stdin in self.os.opened else None
        result = self.os.inside.run_program(command[0].rpartition("/")[2], command[1:], stdin_node)
        communicate = lambda timeout=None: (result.output.encode(), result.errors.encode())  # noqa: E731
        return SimpleNamespace(returncode=result.code, pid=0, communicate=communicate)

    def _account(self, path: str, column: int, value: str, function: str) -> SimpleNamespace:
        for row in rows(self.os.disk, path):
            if row[column] == value:
                return _account_entry(row)
        raise KeyError(f"{function}(): name not found: {value!r}")

    def _remove_tree(self, path: str, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self.os.stat(path, follow_symlinks=False)
        self.os.disk.remove(path)


def _account_entry(row: list[str]) -> SimpleNamespace:
    """Return a line of passwd or group as the module pwd or grp does."""
    number = int(row[2])
    return SimpleNamespace(pw_name=row[0], pw_uid=number, gr_name=row[0], gr_gid=number)


def _refuse_network(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENETUNREACH, "The simulator has no network.")


def _thread(target: Callable[..., object], args: Sequence[Any] = ()) -> SimpleNamespace:
    """Return a thread whose start runs it to its end."""
    return SimpleNamespace(start=lambda: target(*args), join=lambda: None)


_IDLE_INTERPRETERS: list[Interpreter] = []


@contextmanager
def interpreter(inside: InnerLinux) -> Iterator[Interpreter]:
    """Yield an idle interpreter, bound to this environment. Interpreters are reused, because they are slow to load."""
    try:
        free = _IDLE_INTERPRETERS.pop()
    except IndexError:
        free = Interpreter()
    try:
        with free.bind(inside):
            yield free
    finally:
        _IDLE_INTERPRETERS.append(free)
