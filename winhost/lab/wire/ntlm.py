"""Users for pyspnego's NTLM server, which reads them, at each logon, from the file that NTLM_USER_FILE names.

That variable belongs to the process, and endpoints of one process may know different passwords for the same name. So
there is one file for all of them, and an endpoint that is about to check a logon puts its own users into it.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_VARIABLE = "NTLM_USER_FILE"


class UserFile:
    """Exists from the first `open` to the last `close`, in a folder that only its owner may enter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._former: str | None = None

    def open(self) -> None:
        with self._lock:
            self._opened += 1
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="winhost-lab-")
                self._former = os.environ.get(_VARIABLE)
                os.environ[_VARIABLE] = str(self._path(self._folder))

    def close(self) -> None:
        with self._lock:
            self._opened -= 1
            if self._opened == 0 and self._folder is not None:
                self._folder.cleanup()
                self._folder = None
                self._restore()

    @contextmanager
    def holding(self, users: Mapping[str, str]) -> Iterator[None]:
        """While this lasts, the NTLM server knows these users (`name` or `DOMAIN\\name`: password) and no others."""
        with self._lock:
            if self._folder is None:
                raise RuntimeError("the user file is not open")
            path = self._path(self._folder)
            path.touch(mode=0o600)
            path.write_text("".join(_line(name, password) for name, password in users.items()), encoding="utf-8")
            yield

    def _restore(self) -> None:
        if self._former is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = self._former

    @staticmethod
    def _path(folder: tempfile.TemporaryDirectory[str]) -> Path:
        return Path(folder.name, "users")


def _line(name: str, password: str) -> str:
    domain, _, user = name.rpartition("\\")
    return f"{domain}:{user}:{password}\n"


user_file = UserFile()
