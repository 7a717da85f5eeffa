"""Start an engine from an image of its processes on disk, and write that image. An engine's unit runs this as root.

    process_image.py IMAGE_FOLDER MODEL_FOLDER USER -- PROGRAM ARGUMENT…

A vLLM that takes 80 s to start was restored from an image in 6 s (docs/evidence/process-image.md). CRIU (4.1 or newer)
writes and reads the image. The engine must have left its GPU before: the keeper suspends it by the driver's calls, and
resumes it after the restore. An image contains everything in the memory of the engine, also prompts and keys. So only
root can read its folder, and the engine, which runs as a user of its own, cannot change it.

A start uses an image that matches the machine, the command and the model. Otherwise, or if the engine of the last
restore was never confirmed to answer well, the engine starts cold and the image is removed. The socket `control` in the
folder takes a line of JSON: `look` (how did this engine start), `take` (write the image; the engine ends with it),
`confirm` (it answers well).

This file is copied alone to the machine that serves, so it uses only the standard library.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import logging
import os
import platform
import pwd
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

FORMAT = 1
_MANIFEST = {"made_in", "pid", "pids", "pipe", "kept", "files"}
MIN_CRIU = (4, 1)
_LOG = logging.getLogger("image")
_CAPACITY_MARGIN = 2 << 30
_CRIU_PROGRAM = shutil.which("criu") or "criu"
_PID_WAIT_SECONDS = 15  # a killed engine releases its GPU before its process ids
_HASHED = 1 << 20
_MEMORY_FOLDERS = ("/dev/shm/", "/tmp/")  # noqa: S108 - only files that were there before are written there
_SUBREAPER, _NO_NEW_PRIVILEGES, _SECCOMP = 36, 38, 22  # prctl(2)
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # linux/seccomp.h
_ARCHITECTURES = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}  # as audit names them; the call `socket`
_PID_FLOOR, _PID_SPAN = 1_000_000, 3_000_000
# Variables of one start of the unit, which do not matter to the engine.
_UNIT_START_VARIABLES = re.compile(
    r"INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|MEMORY_PRESSURE_\w+|NOTIFY_SOCKET|_|PWD|SHLVL"
)
# Let CRIU save everything that an engine has: locks, deleted files, connections within the unit's own network.
_CRIU_OPTIONS = ("--tcp-established", "--network-lock", "skip", "--ext-unix-sk", "--file-locks", "--link-remap",
         "--ghost-limit", "100000000", "--manage-cgroups=ignore", "-v2")  # fmt: skip


class NoImage(Exception):
    """There is no usable image, or none was written; the text says why."""


class Images:
    """The folder of one engine's image. `image` is complete or absent; `new` is being written; `trying` exists while a
    restored engine is not confirmed.
    """

    def __init__(self, folder: Path, model: Path, command: list[str], user: tuple[int, int]) -> None:
        self.folder, self.model, self.command, self.user = folder, model, command, user
        self.image, self._new, self._trying = folder / "image", folder / "new", folder / "trying"

    def drop(self, why: str) -> None:
        _LOG.info("%s: %s", "the image goes" if self.image.exists() else "cold", why)
        shutil.rmtree(self.image, ignore_errors=True)
        self._trying.unlink(missing_ok=True)

    def check(self) -> int:
        """Check the image, and return the id of the process to restore. Raises NoImage."""
        shutil.rmtree(self._new, ignore_errors=True)
        if self._trying.exists():
            raise NoImage("the engine that was restored from it was never confirmed to answer well")
        manifest = self._manifest()
        now, before = self.circumstances(), manifest["made_in"]
        if changed := [name for name in sorted(now) if before.get(name) != now[name]]:
            raise NoImage(f"it was made with another {', '.join(changed)}")
        for name, (size, digest) in manifest["files"].items():
            file = self.image / "criu" / name
            if not file.is_file() or file.stat().st_size != size or _digest(file) != digest:
                raise NoImage(f"{name} is damaged")
        until = time.monotonic() + _PID_WAIT_SECONDS
        while busy := [pid for pid in manifest["pids"] if Path("/proc", str(pid)).exists()]:
            if time.monotonic() > until:
                raise NoImage(f"process id {busy[0]} is taken")
            time.sleep(0.2)
        return int(manifest["pid"])

    def _manifest(self) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads((self.image / "manifest.json").read_text("utf-8"))
        except FileNotFoundError:
            raise NoImage("there is none") from None
        except (OSError, ValueError) as error:
            raise NoImage(f"its manifest cannot be read: {error}") from None
        if not isinstance(manifest, dict) or not manifest.keys() >= _MANIFEST:
            raise NoImage("its manifest is damaged")
        return manifest

    def restore(self, pid: int, log: int) -> None:
        """Restore the process. log: the descriptor that the engine writes to. Raises NoImage."""
        self._trying.write_text("")
        opened = os.open(self.folder, os.O_RDONLY)
        os.fsync(opened)  # a restore that takes the machine down must not be tried again at its next start
        os.close(opened)
        manifest = self._manifest()
        _restore_files(self.image / "files", manifest["kept"])
        criu = ["restore", "--images-dir", str(self.image / "criu"), "--restore-detached", *_CRIU_OPTIONS]
        _criu([*criu, "--inherit-fd", f"fd[{log}]:pipe:[{manifest['pipe']}]"], log)
        if not Path("/proc", str(pid)).exists():
            raise NoImage("CRIU restored nothing")

    def confirm(self) -> None:
        self._trying.unlink(missing_ok=True)

    def take(self, pid: int, pipe: int) -> dict[str, Any]:
        """Write the image of a process and its descendants, and end them. If that fails, they go on. Raises NoImage."""
        began = time.monotonic()
        version = criu_version()
        if version < MIN_CRIU:
            raise NoImage(f"CRIU {_dotted(version)} is too old: {_dotted(MIN_CRIU)} is needed")
        pids = [pid, *_descendants(pid)]
        needed, free = sum(map(_memory, pids)) + _CAPACITY_MARGIN, shutil.disk_usage(self.folder).free
        if needed > free:
            raise NoImage(f"{self.folder} has {free >> 20} MiB free, and {needed >> 20} MiB are needed")
        shutil.rmtree(self._new, ignore_errors=True)
        (self._new / "criu").mkdir(parents=True)
        threads = sorted({int(task.name) for each in pids for task in Path(f"/proc/{each}/task").iterdir()})
        try:
            before = {*_link_remaps()}
            open_files = _open_memory_files(pids)
            _criu(["dump", "--tree", str(pid), "--images-dir", str(self._new / "criu"), *_CRIU_OPTIONS], None)
            links = [path for path in _link_remaps() if path not in before]
            kept = _store_files([*open_files, *links], self._new / "files")
            for path in links:  # the next image of another engine may use the same names
                Path(path).unlink()
        except BaseException:
            shutil.rmtree(self._new, ignore_errors=True)
            raise
        files = {each.name: (each.stat().st_size, _digest(each)) for each in sorted((self._new / "criu").iterdir())}
        manifest = {
            "made_in": self.circumstances(),
            "pid": pid,
            "pids": threads,
            "pipe": pipe,
            "kept": kept,
            "files": files,
        }
        (self._new / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        os.sync()
        shutil.rmtree(self.image, ignore_errors=True)
        self._new.rename(self.image)
        size = sum(size for size, _ in files.values())
        return {"bytes": size, "seconds": round(time.monotonic() - began, 2)}

    def circumstances(self) -> dict[str, Any]:
        """Return the circumstances that must be the same when an image is used as when it was written."""
        environment = {name: text for name, text in os.environ.items() if not _UNIT_START_VARIABLES.fullmatch(name)}
        return {
            "format": FORMAT,
            "command": self.command,
            "environment": hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest(),
            "user": list(self.user),
            "machine": _text("/etc/machine-id"),
            "kernel": f"{platform.release()} {platform.version()}",
            "processor": hashlib.sha256(_processor_flags().encode()).hexdigest(),
            "driver": _text("/proc/driver/nvidia/version").partition("\n")[0],
            "GPUs": gpus(),
            "CRIU": list(criu_version()),
            "files of the model": _listing_hash(self.model),
            "program": _listing_hash(Path(self.command[0]).resolve()),
            "packages": _packages_hash(Path(self.command[0])),
        }


def criu_version() -> tuple[int, ...]:
    """Return the version of CRIU. Raises NoImage if there is no CRIU."""
    try:
        output = subprocess.run(  # noqa: S603
            [_CRIU_PROGRAM, "--version"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise NoImage(f"CRIU does not start: {error}") from None
    version = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", output)
    if version is None:
        raise NoImage("CRIU does not say its version")
    return tuple(int(part) for part in version.groups() if part)


def gpus() -> list[str]:
    """Return model, UUID and address of each GPU, as the driver reports them."""
    described = []
    for each in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = dict(line.split(":", 1) for line in _text(str(each)).splitlines() if ":" in line)
        described.append(" ".join(lines.get(name, "?").strip() for name in ("Model", "GPU UUID", "Bus Location")))
    return described


def _criu(arguments: list[str], keep: int | None) -> None:
    """Run CRIU. keep: a descriptor that it inherits. Raises NoImage with the last errors that CRIU printed."""
    done = subprocess.run(  # noqa: S603 - arguments of this file
        [_CRIU_PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", pass_fds=() if keep is None else (keep,),
    )  # fmt: skip
    if done.returncode:
        lines = [line.strip() for line in done.stdout.splitlines()]
        errors = [line for line in lines if "Error" in line][-4:] or lines[-4:]
        raise NoImage(f"CRIU ended with {done.returncode}: {' | '.join(errors)}")


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _descendants(child)


def _memory(pid: int) -> int:
    """Return the bytes of a process that an image contains: memory that is not backed by a file on a disk."""
    lines = dict(line.split(":", 1) for line in _text(f"/proc/{pid}/smaps_rollup").splitlines()[1:])
    return sum(int(lines.get(name, "0").split()[0]) for name in ("Pss_Anon", "Pss_Shmem", "SwapPss")) << 10


def _open_memory_files(pids: list[int]) -> list[str]:
    """List the open files of the processes that disappear with the unit, or with a restart of the machine."""
    paths: set[str] = set()
    for pid in pids:
        for links in (Path(f"/proc/{pid}/map_files"), Path(f"/proc/{pid}/fd")):
            paths |= {path for path in map(_target, links.iterdir()) if f"{Path(path).parent}/" in _MEMORY_FOLDERS}
    return sorted(paths)


def _link_remaps() -> Iterator[str]:
    """Yield the names that CRIU makes for deleted files; it removes them when it restores."""
    for folder in _MEMORY_FOLDERS:
        yield from map(str, Path(folder).glob("link_remap.*"))


def _store_files(paths: list[str], folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    kept: list[dict[str, Any]] = []
    for path in paths:
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # the file was deleted: CRIU has its content
            continue
        with os.fdopen(opened, "rb") as source:
            status = os.fstat(opened)
            with (folder / str(len(kept))).open("wb") as target:
                shutil.copyfileobj(source, target)
            kept.append({"path": path, "mode": status.st_mode & 0o7777, "owner": [status.st_uid, status.st_gid]})
    return kept


def _restore_files(folder: Path, kept: list[dict[str, Any]]) -> None:
    """Write the stored files again. Their folders are writable for everybody, so no link is followed, and no file of
    another user is replaced. Raises NoImage.
    """
    for number, each in enumerate(kept):
        path = Path(each["path"])
        with suppress(FileNotFoundError):
            if path.lstat().st_uid != each["owner"][0]:
                raise NoImage(f"{path} is somebody else's")
            path.unlink()
        created = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(created, "wb") as target, (folder / str(number)).open("rb") as source:
            shutil.copyfileobj(source, target)
            os.fchown(created, *each["owner"])
            os.fchmod(created, each["mode"])


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""


def _processor_flags() -> str:
    found = re.search(r"^(?:flags|Features)\s*:.*$", _text("/proc/cpuinfo"), re.M)
    return found[0] if found else ""


def _listing_hash(path: Path) -> str:
    """Return a hash of the names, sizes and times of all files below a path."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    lines = [f"{each} {each.stat().st_size} {each.stat().st_mtime_ns}" for each in files if each.is_file()]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _packages_hash(program: Path) -> str:
    """Return a hash of the packages in the Python environment of a program. An update of packages may leave the program
    itself unchanged.
    """
    found = program.parent.parent.glob("lib/python3*/site-packages/*.dist-info")
    return hashlib.sha256("\n".join(sorted(each.name for each in found)).encode()).hexdigest()


def _digest(path: Path) -> str | None:
    """Return the hash of a file of an image; None for the memory, because reading it takes as long as restoring it."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.stat().st_size < _HASHED else None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


class Engine:
    """The process of the unit and its descendants. This process reaps all of them, so that their ids are free again for
    a restore.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        self._pid = 0
        self._stopping = self._taken = False
        self._began = "cold"
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._with_criu = asyncio.Lock()  # CRIU is a child as well, but must not be reaped by `_reap`
        self._reader, self._writer = os.pipe()
        self._pipe = os.fstat(self._writer).st_ino

    async def run(self) -> int:
        """Run until the engine ends. Returns its exit code."""
        loop = asyncio.get_running_loop()
        ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._pass_on)
        copying = loop.run_in_executor(None, _copy, self._reader)
        control = self._images.folder / "control"
        control.unlink(missing_ok=True)
        async with self._with_criu:
            # Listen first: a restored engine answers at once, and then the keeper asks how it started.
            server = await asyncio.start_unix_server(self._answer, str(control))
            control.chmod(0o600)
            await loop.run_in_executor(None, self._begin)
        if self._stopping:  # the signal came before there was a process to pass it to
            self._pass_on()
        os.close(self._writer)
        loop.add_signal_handler(signal.SIGCHLD, lambda: loop.create_task(self._reap()))
        await self._reap()
        code = await self._ended
        server.close()
        await asyncio.wait([copying], timeout=5)
        return code

    def _begin(self) -> None:
        try:
            pid = self._images.check()
        except NoImage as error:
            self._images.drop(str(error))
        else:
            try:
                began = time.monotonic()
                self._images.restore(pid, self._writer)
                self._pid, self._began = pid, "restored"
                _LOG.info("restored in %.1f s", time.monotonic() - began)
                return
            except (NoImage, OSError) as error:
                for remaining in _descendants(os.getpid()):  # never the process of another program with that id
                    with suppress(OSError):
                        os.kill(remaining, signal.SIGKILL)
                self._images.drop(f"it was not restored: {error}")
        lift_pids()
        uid, gid = self._images.user
        drop = [
            "setpriv",
            f"--reuid={uid}",
            f"--regid={gid}",
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ]
        self._pid = subprocess.Popen(  # noqa: S603 - the command of the unit
            [*drop, "--no-new-privs", *self._images.command],
            stdin=subprocess.DEVNULL, stdout=self._writer, stderr=self._writer, start_new_session=True,
            preexec_fn=filter_calls,
        ).pid  # fmt: skip

    def _pass_on(self) -> None:
        self._stopping = True
        if self._pid and not self._ended.done():
            with suppress(OSError):
                os.kill(self._pid, signal.SIGTERM)

    async def _reap(self) -> None:
        async with self._with_criu:
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    break
                if pid == 0:
                    return
                if pid == self._pid and not self._ended.done():
                    code = os.waitstatus_to_exitcode(status)
                    # An engine that SIGTERM ended was stopped as requested, and CRIU ends the process that it saved.
                    expected = self._taken or (self._stopping and code == -signal.SIGTERM)
                    self._ended.set_result(0 if expected else code & 0xFF)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            action = json.loads(await reader.readline())["do"]
            if action == "look":
                async with self._with_criu:
                    answer: dict[str, Any] = {"began": self._began, "image": self._images.image.exists()}
            elif action == "confirm":
                self._images.confirm()
                answer = {"done": action}
            elif action == "take":
                answer = await self._take()
            else:
                answer = {"error": "look, take or confirm is expected"}
        except (NoImage, OSError) as error:
            answer = {"error": str(error)}
        except (ValueError, KeyError, TypeError):
            answer = {"error": "not understood"}
        writer.write(json.dumps(answer).encode() + b"\n")
        with suppress(OSError):
            await writer.drain()
        writer.close()
        if self._taken and not self._ended.done():
            self._ended.set_result(0)

    async def _take(self) -> dict[str, Any]:
        async with self._with_criu:
            taken = await asyncio.get_running_loop().run_in_executor(None, self._images.take, self._pid, self._pipe)
            self._taken = True
        self._images.confirm()
        _LOG.info("image of %d MiB in %.1f s", taken["bytes"] >> 20, taken["seconds"])
        return {"taken": taken}


def lift_pids() -> None:
    """Let the next processes get high ids, which other processes rarely have, because a restored process needs its own
    id again.
    """
    try:
        if int(_text("/proc/sys/kernel/pid_max")) > _PID_FLOOR + _PID_SPAN:
            first = _PID_FLOOR + int.from_bytes(os.urandom(4), "little") % _PID_SPAN
            Path("/proc/sys/kernel/ns_last_pid").write_text(str(first))
    except (OSError, ValueError) as error:
        _LOG.info("process ids stay low: %s", error)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


def filter_calls() -> None:
    """Deny this process io_uring, which CRIU cannot save, and sockets of address families that the unit does not allow.
    systemd's own filters would apply to CRIU as well, and CRIU saves nothing under a filter.
    """
    audit, socket_call = _ARCHITECTURES[platform.machine()]
    load, equal, at_least, result = 0x20, 0x15, 0x35, 0x06  # linux/bpf_common.h
    families, first_ring, last_ring = (1, 2, 10, 16), 425, 427  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
    rows = [
        (load, 0, 0, 4), (equal, 1, 0, audit), (result, 0, 0, _ERRNO | 38),
        (load, 0, 0, 0), (at_least, 0, 2, first_ring), (at_least, 1, 0, last_ring + 1), (result, 0, 0, _ERRNO | 1),
        (equal, 1, 0, socket_call), (result, 0, 0, _ALLOW),
        (load, 0, 0, 16), *((equal, len(families) - n, 0, each) for n, each in enumerate(families)),
        (result, 0, 0, _ERRNO | 97), (result, 0, 0, _ALLOW),
    ]  # fmt: skip
    code = b"".join(struct.pack("=HBBI", *row) for row in rows)
    program = _Filter(len(rows), ctypes.cast(ctypes.create_string_buffer(code, len(code)), ctypes.c_void_p))
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.prctl(_SECCOMP, 2, ctypes.byref(program), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls cannot be set")


def _copy(reader: int) -> None:
    while piece := os.read(reader, 1 << 16):
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def main(arguments: list[str]) -> int:
    """Run until the engine ends."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    folder, model, user, dashes, *command = arguments
    if dashes != "--" or not command:
        raise SystemExit("usage: process_image.py IMAGE_FOLDER MODEL_FOLDER USER -- PROGRAM ARGUMENT…")
    account = pwd.getpwnam(user)
    images = Images(Path(folder), Path(model), command, (account.pw_uid, account.pw_gid))

    async def run() -> int:
        return await Engine(images).run()

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
