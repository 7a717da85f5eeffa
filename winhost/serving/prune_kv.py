"""Keeps mirrors of KV caches within their size: `python3 -I prune_kv.py BYTES FOLDER…`, as root, by a timer.

Where the files of a folder are more than BYTES together, those that nobody read or wrote for longest go. An engine that
misses one computes it again (kv_load_failure_policy). Engines write these folders, so no link in them is followed.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

YOUNG_S = 600  # it may still be written


def files_of(folder: str) -> Iterator[tuple[float, int, str, str]]:
    """The files of blocks: last use, size, path of the folder below `folder`, and name."""
    for path, _, names, fd in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            if name.endswith(".json"):
                continue  # what the blocks beside it are of
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            yield max(found.st_atime, found.st_mtime), found.st_size, os.path.relpath(path, folder), name


def least_used(files: list[tuple[float, int, str, str]], most: int, now: float) -> Iterator[tuple[str, str]]:
    """Folder and name of those that have to go."""
    left = sum(size for _, size, _, _ in files)
    for used, size, path, name in sorted(files):
        if left <= most or used > now - YOUNG_S:
            return
        left -= size
        yield path, name


def remove(folder: str, names: Iterable[tuple[str, str]]) -> int:
    """Remove files through the open folders themselves: a link that replaces a folder leads nowhere."""
    going, count = set(names), 0
    for path, _, here, fd in os.fwalk(folder, follow_symlinks=False):
        for name in here:
            if (os.path.relpath(path, folder), name) not in going:
                continue
            try:
                os.unlink(name, dir_fd=fd)
                count += 1
            except OSError:
                continue  # gone, or a folder by now
    return count


def main(words: list[str]) -> int:
    for given in words[1:]:
        folder = os.path.realpath(given)  # a link of systemd's, where the engine's user exists only while it runs
        if not Path(folder).is_dir():
            continue  # its engine has not started yet
        names = list(least_used(list(files_of(folder)), int(words[0]), time.time()))
        if names:
            sys.stdout.write(f"{given}: {remove(folder, names)} files removed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
