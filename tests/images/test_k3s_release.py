"""Releases of k3s, as a server has them on loopback."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest

from winhost.images.k3s_release import IMAGES, KNOWN, PROGRAM, SUMS, k3s_release
from winhost.model.cluster_defaults import K3S
from winhost.model.errors import UsageError, WinhostError

VERSION = "v1.34.9+k3s1"
FILES = {PROGRAM: b"program", IMAGES: b"images" * 100}


def sums(files: Mapping[str, bytes]) -> bytes:
    return "".join(f"{sha256(data).hexdigest()}  {name}\n" for name, data in files.items()).encode("ascii")


@contextmanager
def mirror(files: Mapping[str, bytes], version: str = VERSION) -> Iterator[str]:
    """A folder of one release."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            folder, _, name = self.path.lstrip("/").partition("/")
            data = files.get(name) if folder == quote(version, safe="") else None
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data or b"")

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("images", [False, True])
def test_hashes_are_those_that_the_release_lists_and_sizes_those_of_its_files(images: bool) -> None:
    with mirror({**FILES, SUMS: sums(FILES)}) as url:
        found = k3s_release(VERSION, images=images, mirror=url)
    names = [PROGRAM, IMAGES] if images else [PROGRAM]
    assert [(each.name, each.sha256, each.bytes) for each in found] == [
        (name, sha256(FILES[name]).hexdigest(), len(FILES[name])) for name in names
    ]
    assert found[0].source == f"{url}/v1.34.9%2Bk3s1/k3s"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "answers 404"),
        ({SUMS: b"", **FILES}, "lists no hash of k3s"),
        ({SUMS: sums({IMAGES: b""}), **FILES}, "lists no hash of k3s"),
        ({SUMS: sums(FILES)}, "answers 404"),
        ({SUMS: sums({PROGRAM: b""}), PROGRAM: b""}, "tells no size of k3s"),
    ],
)
def test_a_release_that_lacks_something_is_refused(files: Mapping[str, bytes], says: str) -> None:
    with mirror(files) as url, pytest.raises(WinhostError, match=says) as refused:
        k3s_release(VERSION, images=False, mirror=url)
    assert refused.value.code == "ReleaseRefused"


def test_a_release_that_is_known_has_the_hash_that_it_had() -> None:
    with mirror({**FILES, SUMS: sums(FILES)}, K3S) as url, pytest.raises(WinhostError, match="another hash"):
        k3s_release(K3S, images=False, mirror=url)
    listed = f"{KNOWN[K3S]}  k3s\n".encode("ascii")
    with mirror({PROGRAM: b"any", SUMS: listed}, K3S) as url:
        assert k3s_release(K3S, images=False, mirror=url)[0].sha256 == KNOWN[K3S]


@pytest.mark.parametrize(
    "version", ["", "latest", "v1.35", "v1.35.5", "1.35.5+k3s1", "v1.35.5+k3s1/..", "v1.35.5+k3s1\n"]
)
def test_a_version_is_called_as_its_release(version: str) -> None:
    with pytest.raises(UsageError) as refused:
        k3s_release(version, images=False, mirror="http://127.0.0.1:9")
    assert refused.value.code == "NoRelease"


def test_a_mirror_beyond_this_machine_takes_tls() -> None:
    with pytest.raises(WinhostError, match="without TLS"):
        k3s_release(VERSION, images=False, mirror="http://mirror.example.com")
