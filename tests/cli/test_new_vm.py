"""`winhost plan --new-vm`: its options are settings of path dda, and all their faults are reported at once."""

import json
from hashlib import sha256

import pytest

from tests.cli.conftest import Line
from tests.images.made_qcow2 import made
from tests.images.mirror import Mirror, served, signed_release, signer
from tests.rows import each_row
from winhost.images import signed_sums
from winhost.model.units import MiB

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK8Go+MpFxTk81bBnJsVzRlR7G5mYqp3vgdUfyiTgzQd me"
SIZED = ("--new-vm", "llm-02", "--cpus", "8", "--memory", "32GiB", "--disk", "100GiB")
WHOLE = (*SIZED, "--set", f"new_vm.guest.key={KEY}")
BESIDE = ("--vhdx", "./ubuntu.vhdx")
ON_THE_HOST = ("--vhdx", r"D:\images\ubuntu.vhdx")


def test_the_options_are_in_the_plan_with_the_hash_of_the_file_beside_it(line: Line) -> None:
    (line.folder / "ubuntu.vhdx").write_bytes(b"a disk")
    facts = line.facts("server2025-role-installed")
    (line.folder / "me.pub").write_text(f"{KEY}\n", encoding="ascii")
    static = ("--address", "192.0.2.10/24", "--gateway", "192.0.2.1", "--dns", "192.0.2.53,192.0.2.54")
    guest = ("--ssh-key", str(line.folder / "me.pub"), "--user", "admin", *static)
    assert line("plan", facts, *SIZED, *BESIDE, *guest, "--switch", "LAN", "--vlan", "20", "-o", "plan.json").code == 0
    request = json.loads((line.folder / "plan.json").read_text("utf-8"))["request"]
    assert request["playbook"]["settings"]["new_vm"] == {
        "name": "llm-02",
        "cpus": 8,
        "memory": "32GiB",
        "disk": "100GiB",
        "switch": "LAN",
        "vlan": 20,
        "vhdx": {"source": "./ubuntu.vhdx", "sha256": sha256(b"a disk").hexdigest()},
        "guest": {"key": KEY, "user": "admin"},
        "address": "192.0.2.10/24",
        "gateway": "192.0.2.1",
        "dns": "192.0.2.53,192.0.2.54",
    }


@each_row(
    ("words", "says"),
    [
        ((*WHOLE, *BESIDE), "ubuntu.vhdx cannot be read: No such file or directory"),
        ((*WHOLE, *ON_THE_HOST), "error: --new-vm also needs --vhdx-sha256"),
        (("--new-vm", "llm-02", *BESIDE, "--vhdx-sha256", "2" * 64), "--new-vm also needs --cpus, --memory, --disk"),
        (("--new-vm", "llm-02", "--vm", "llm-01"), "--vm: names a VM that is there; --new-vm makes one"),
        ((*WHOLE, "--image", "ubuntu-22.04"), "--image: should be ubuntu-24.04, ubuntu-26.04, with a day"),
        ((*WHOLE, "--image", "./none.qcow2"), "none.qcow2 cannot be read: No such file or directory"),
        ((*WHOLE, "--image", "https://example.org/a.img"), "an image at an address of its own needs --image-sha256"),
        (
            (*WHOLE, *BESIDE, "--vhdx-sha256", "2" * 64, "--image", "ubuntu-24.04"),
            "of vhdx or of an image, not of both",
        ),
        (("--cpus", "8"), "error: --cpus also needs --new-vm, "),
        (("--cpus", "0"), "--cpus: should be greater than or equal to 1"),
        (("--set", "new_vm.cpus=8"), "invalid value for --set: settings.new_vm.name: is missing"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--new-vm", "LLM 02"), "--new-vm: should be 1 to 63"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--memory", "3"), "error: --memory: should be a size"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--memory", '""'), "error: --memory: should be a size"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--disk", '""'), "error: --disk: should be a size"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--set", "new_vm.cpu=3"), "settings.new_vm.cpu: "),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--vm", "llm-01"), "--new-vm makes one"),
        ((*WHOLE, *ON_THE_HOST, "--vhdx-sha256", "2" * 64, "--path", "wsl2"), "new_vm"),
        ((*SIZED, "--ssh-key", "none.pub"), "--ssh-key: none.pub cannot be read: No such file or directory"),
        ((*WHOLE, "--user", "root"), "--user: should be another user than root"),
    ],
)
def test_what_is_wrong_with_them_is_told_before_any_host_is_asked(
    line: Line, words: tuple[str, ...], says: str
) -> None:
    said = line("plan", line.facts("server2025-role-installed"), *words)
    assert said.code == 2
    assert says in " ".join(said.err.split())


def test_a_private_key_that_is_given_for_the_public_one_is_not_shown(line: Line) -> None:
    secret = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAA"
    (line.folder / "id").write_text(f"-----BEGIN OPENSSH PRIVATE KEY-----\n{secret}\n", encoding="ascii")
    said = line("plan", line.facts("server2025-role-installed"), *SIZED, "--ssh-key", str(line.folder / "id"))
    assert said.code == 2
    assert "this is a private key" in said.err
    assert secret not in said.err + said.out


IMAGE = bytes(made(b"a disk".ljust(MiB, b"\0"), cluster_bits=16).data)


@pytest.fixture(autouse=True)
def cache(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_CACHE", str(line.folder / "cache"))


def test_the_newest_image_that_canonical_signed_is_pinned_with_the_disk_of_it(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = signer("Canonical, as it were")
    monkeypatch.setattr(signed_sums, "canonicals_key", lambda: key.public)
    monkeypatch.setattr(signed_sums, "SIGNING_KEY", key.fingerprint)
    with served(Mirror(signed_release(key, IMAGE))) as mirror:
        facts = line.facts("server2025-role-installed")
        said = line("plan", facts, *WHOLE, "--image-mirror", mirror.url, "-o", "plan.json", "--details")
        assert said.code == 0, said.err
    plan = json.loads((line.folder / "plan.json").read_text("utf-8"))
    image = plan["request"]["playbook"]["settings"]["new_vm"]["image"]
    (disk,) = (line.folder / "cache").rglob("*.vhdx")
    assert image["name"] == "ubuntu-24.04@20260814"
    assert image["pinned"] == {
        "place": f"{mirror.url}/noble/release-20260814/ubuntu-24.04-server-cloudimg-amd64.img",
        "sha256": sha256(IMAGE).hexdigest(),
        "bytes": len(IMAGE),
        "disk_sha256": sha256(disk.read_bytes()).hexdigest(),
        "disk_bytes": disk.stat().st_size,
    }
    assert plan["stages"][0]["steps"][0]["key"]["source"] == "./ubuntu-24.04-20260814.vhdx"
    assert sha256(IMAGE).hexdigest() in said.out


def test_an_image_with_another_signature_is_not_pinned(line: Line) -> None:
    with served(Mirror(signed_release(signer("somebody"), IMAGE))) as mirror:
        said = line("plan", line.facts("server2025-role-installed"), *WHOLE, "--image-mirror", mirror.url)
    assert said.code == 2
    assert "no good signature by D2EB4462" in said.err
    assert not (line.folder / "cache").exists()


def test_a_disk_that_the_host_fetches_takes_a_consent(line: Line) -> None:
    (line.folder / "mine.qcow2").write_bytes(IMAGE)
    facts, mine = line.facts("server2025-role-installed"), ("--image", "./mine.qcow2")
    fetched = line("plan", facts, *WHOLE, *mine, "--upload", "http")
    assert "the host fetches it from the computer that runs winhost" in " ".join(fetched.out.split())
    assert "open a port on it or on the computer that runs winhost" in " ".join(fetched.out.split())
    sent = line("plan", facts, *WHOLE, *mine)
    assert "over the connection to the host" in " ".join(sent.out.split())
    assert "Approvals needed" not in sent.out


def test_a_plan_that_is_refused_fetches_nothing(line: Line) -> None:
    (line.folder / "mine.qcow2").write_bytes(IMAGE)
    facts = line.facts("server2025-role-installed")
    mine = ("--image", "./mine.qcow2")
    refused = line("plan", facts, *WHOLE, *mine, "--memory", "900TiB")
    assert (refused.code, (line.folder / "cache").exists()) == (3, False)
    assert line("plan", facts, *WHOLE, *mine).code == 0
    assert line("plan", facts, *WHOLE, "--image", "./noble-minimal-cloudimg-amd64.img").code == 3


def test_a_bundle_brings_the_disk_along(line: Line) -> None:
    (line.folder / "mine.qcow2").write_bytes(IMAGE)
    facts = line.facts("server2025-role-installed")
    assert line("plan", facts, *WHOLE, "--image", "./mine.qcow2", "-o", "plan.json").code == 0
    said = line("bundle", "plan.json", "-o", "bundle")
    assert said.code == 0, said.err
    disk = (line.folder / "bundle" / "mine.vhdx").read_bytes()
    readme = (line.folder / "bundle" / "README.md").read_text("utf-8")
    assert f"used only if its SHA-256 is `{sha256(disk).hexdigest()}`" in readme
    assert "not in this folder yet" not in readme
