"""Limit the size of mirrors of KV caches: `python3 -I prune_kv.py BYTES FOLDER…`, as root, by a timer.

If the files of a folder have more than BYTES together, the least recently used ones are removed. An engine that misses
one computes it again (kv_load_failure_policy). Engines write these folders, so no link in them is followed.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

YOUNG_S = 600  # it may still be written


def files_of(folder: str) -> Iterator[tuple[float, int, str, str]]:
    """Yield the files of blocks: last use, size, path of their folder below `folder`, and name."""
    for path, _, names, fd in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            if name.endswith(".json"):
                continue  # describes the blocks in the same folder
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield max(found.st_atime, found.st_mtime), found.st_size, os.path.relpath(path, folder), name


def least_recently_used(files: list[tuple[float, int, str, str]], limit: int, now: float) -> Iterator[tuple[str, str]]:
    """Yield folder and name of the files to remove, so that the others have at most `limit` bytes."""
    remaining = sum(size for _, size, _, _ in files)
    for used, size, path, name in sorted(files):
        if remaining <= limit or used > now - YOUNG_S:
            return
        remaining -= size
        yield path, name


def remove(folder: str, names: Iterable[tuple[str, str]]) -> int:
    """Remove files relative to their open folders, so that a link in the place of a folder has no effect. Returns the
    number of removed files.
    """
    doomed, count = set(names), 0
    for path, _, files, fd in os.fwalk(folder, follow_symlinks=False):
        for name in files:
            if (os.path.relpath(path, folder), name) not in doomed:
                continue
            try:
                os.unlink(name, dir_fd=fd)
                count += 1
            except OSError:
                continue  # it was removed, or became a folder, in the meantime
    return count


def main(arguments: list[str]) -> int:
    limit, *paths = arguments
    for path in paths:
        folder = os.path.realpath(path)  # with DynamicUser=yes the path is a link made by systemd
        if not Path(folder).is_dir():
            continue  # its engine has not started yet
        names = list(least_recently_used(list(files_of(folder)), int(limit), time.time()))
        if names:
            sys.stdout.write(f"{path}: {remove(folder, names)} files removed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
