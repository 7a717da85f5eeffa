"""One guest for all tests of a file, from our image to its first logon."""

from collections.abc import Iterator
from hashlib import file_digest

import pytest

from tests.cli.conftest import line
from tests.connect.sshd import keypair
from tests.linux.debian import NoDebian
from tests.vm.hyperv_on_qemu import QemuWorld, qemu_world
from tests.vm.qemu_vm import NoQemu, QemuVm, accelerator
from tests.vm.ubuntu_image import NoImage, make_image
from winhost.images.guest_disk import GuestDisk, SourceImage, guest_disk


@pytest.fixture(scope="module")
def _can_run() -> None:
    try:
        accelerator()
    except NoQemu as why:
        pytest.skip(f"no VM can run here: {why}")


@pytest.fixture(scope="module")
def disk(_can_run: None, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> GuestDisk:
    """The image as winhost makes a disk of it, anew each time."""
    try:
        image = make_image(pytestconfig.cache.mkdir("guest") / "noble")
    except (NoImage, NoDebian) as why:
        pytest.skip(f"no image with cloud-init can be made here: {why}")
    with image.open("rb") as file:
        source = SourceImage(str(image), file_digest(file, "sha256").hexdigest())
    return guest_disk(source, lambda *_: None, cache=tmp_path_factory.mktemp("disks"))


@pytest.fixture(scope="module")
def here(disk: GuestDisk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuWorld]:
    folder = tmp_path_factory.mktemp("guest")
    qemu = QemuVm(folder, disk.path)
    yield qemu_world(folder, qemu, keypair(folder / "key"))
    qemu.turn_off()


__all__ = ["line"]  # a fixture of the command line's tests
