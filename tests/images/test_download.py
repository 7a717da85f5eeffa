"""Downloads: on from where they ended, and nothing is kept that is not what was wanted."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.mirror import Mirror, served
from winhost.images.download import RemoteImage, check_file, download, fetch_text
from winhost.model.errors import Exit
from winhost.web import large_files

IMAGE = bytes(range(256)) * 20_000
SUM = hashlib.sha256(IMAGE).hexdigest()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(large_files.time, "sleep", lambda _: None)
    with served(Mirror({"/a.img": IMAGE})) as serving:
        yield serving


def image(mirror: Mirror, sha256: str = SUM, size: int | None = None) -> RemoteImage:
    return RemoteImage(f"{mirror.url}/a.img", sha256, size)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {f"{SUM}.lock"}


def test_it_comes_whole_and_only_once(mirror: Mirror, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        got = download(image(mirror, size=len(IMAGE)), tmp_path / "cache", lambda *how_far: seen.append(how_far))
        assert got.read_bytes() == IMAGE
    assert names(tmp_path / "cache") == {f"{SUM}.img"}
    assert mirror.asked == [("/a.img", None)]
    assert seen == sorted(seen)
    assert seen[-1] == (len(IMAGE), len(IMAGE))


def test_a_file_in_the_cache_that_changed_is_downloaded_anew(mirror: Mirror, tmp_path: Path) -> None:
    got = download(image(mirror), tmp_path)
    got.write_bytes(IMAGE[:-1] + b"!")
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE


def test_it_goes_on_where_it_was_cut(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut = [2_000_000, 1_000_000]
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE
    assert [wanted for _, wanted in mirror.asked] == [None, "bytes=2000000-", "bytes=3000000-"]


def test_the_next_run_goes_on_too(mirror: Mirror, tmp_path: Path) -> None:
    mirror.cut = [2_000_000] + [0] * 5
    with raises("DownloadFailed") as failed:
        download(image(mirror), tmp_path)
    assert failed.value.exit_code is Exit.FAILURE
    assert names(tmp_path) == {f"{SUM}.part"}
    mirror.asked.clear()
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE
    assert mirror.asked == [("/a.img", "bytes=2000000-")]


def test_a_mirror_that_hears_no_ranges_sends_all_anew(mirror: Mirror, tmp_path: Path) -> None:
    mirror.whole = True
    mirror.cut = [2_000_000]
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE


@pytest.mark.parametrize("begun", [IMAGE, IMAGE + b"more", IMAGE[:-7]], ids=["whole", "too long", "nearly"])
def test_whatever_an_earlier_run_left_is_settled(begun: bytes, mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / f"{SUM}.part").write_bytes(begun)
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE


def test_another_file_is_not_kept(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/a.img"] = IMAGE[:-1] + b"!"
    with raises("NotThisImage", match="has SHA-256"):
        download(image(mirror), tmp_path)
    assert names(tmp_path) == set()


def test_another_size_is_refused_before_it_comes(mirror: Mirror, tmp_path: Path) -> None:
    with raises("NotThisImage", match=f"has {len(IMAGE):,} bytes, and {len(IMAGE) + 1:,} are wanted"):
        download(image(mirror, size=len(IMAGE) + 1), tmp_path)
    assert names(tmp_path) == set()


def test_a_server_that_states_no_length_is_refused_as_that(mirror: Mirror, tmp_path: Path) -> None:
    mirror.headers = {"Content-Length": ""}
    for size, expected in ((len(IMAGE), rf" \({len(IMAGE):,} bytes are expected\)"), (None, "")):
        with raises("DownloadFailed", match=rf"/a\.img does not state its length{expected}$"):
            download(image(mirror, size=size), tmp_path)
    assert names(tmp_path) == set()


@pytest.mark.parametrize(
    "headers", [{"Content-Length": ""}, {"Content-Length": "99999999999999"}, {"Content-Encoding": "gzip"}]
)
def test_what_has_no_end_or_may_inflate_is_refused(headers: dict[str, str], mirror: Mirror, tmp_path: Path) -> None:
    mirror.headers = headers
    with raises("DownloadFailed"):
        download(image(mirror), tmp_path)


def test_what_passes_is_waited_for(mirror: Mirror, tmp_path: Path) -> None:
    mirror.status = [503, 429, 500]
    assert download(image(mirror), tmp_path).read_bytes() == IMAGE


def test_what_is_gone_is_gone_at_once(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files.clear()
    with raises("DownloadFailed", match="HTTP 404") as failed:
        download(image(mirror), tmp_path)
    assert "Older releases are removed" in (failed.value.hint or "")
    assert len(mirror.asked) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a.img", "/a.img"])
def test_other_places_are_refused_at_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_files.time, "sleep", lambda _: pytest.fail("it is tried again"))
    with raises("DownloadFailed", match="is no HTTP or HTTPS URL"):
        download(RemoteImage(url, SUM), tmp_path)


def test_a_server_that_is_not_there_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(large_files.time, "sleep", pauses.append)
    with raises("DownloadFailed", match="cannot be reached"):
        download(RemoteImage("http://127.0.0.1:1/a", SUM), tmp_path)
    assert pauses
    assert names(tmp_path) == set()


def test_a_cache_that_cannot_be_written_is_said(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / f"{SUM}.part").symlink_to(tmp_path / "gone" / "part")
    with pytest.raises(FileNotFoundError, match=f"{SUM}.part"):
        download(image(mirror), tmp_path)


@pytest.mark.parametrize(
    ("status", "hint"), [(503, "Run the command again"), (429, "Run the command again"), (404, "Older releases")]
)
def test_the_page_of_an_error_is_no_text(status: int, hint: str, mirror: Mirror) -> None:
    mirror.files["/SHA256SUMS"], mirror.status = b"busy", [status]
    with raises("DownloadFailed", match=f"answers with HTTP {status}") as failed:
        fetch_text(f"{mirror.url}/SHA256SUMS")
    assert hint in (failed.value.hint or "")


def test_a_text_without_end_is_refused(mirror: Mirror) -> None:
    mirror.files["/SHA256SUMS"] = bytes(2 << 20)
    with raises("DownloadFailed", match="sends more than 1 MiB"):
        fetch_text(f"{mirror.url}/SHA256SUMS")


def test_a_file_that_somebody_brought_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.img"
    path.write_bytes(IMAGE)
    check_file(path, SUM)
    with raises("NotThisImage", match=SUM):
        check_file(path, "0" * 64)
    with raises("NotThisImage", match="no SHA-256"):
        RemoteImage("https://example.org", "\x1b[2J")
