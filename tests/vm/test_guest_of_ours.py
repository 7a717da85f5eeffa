"""A guest of ours, for real but for Hyper-V: our disk, our seed, its own UEFI, kernel, cloud-init and sshd, in QEMU.

What follows needs what came before: a start takes seconds with KVM and minutes where the processor is emulated.
"""

import subprocess
import time

import pytest
import yaml

from tests.cli.conftest import Line
from tests.linux.debian import sure
from tests.vm.hyperv_on_qemu import SLOW, QemuWorld
from tests.vm.qemu_vm import GUEST
from winhost.engine.failures import RunInterrupted
from winhost.images.guest_disk import GuestDisk
from winhost.lab.physics.vm_creation import GuestDisc, read_disc
from winhost.resources.host import HostFacts
from winhost.resources.linux.read_only import LinuxSystem

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

LATE = 1500  # seconds, where a processor is emulated on a busy machine


def disc_of(here: QemuWorld) -> GuestDisc:
    disc = here.made.seeds_at_starts[0]
    assert disc is not None
    return read_disc(disc)


def inside(here: QemuWorld, command: str, known: str | None = None) -> str:
    """What a command says there, by OpenSSH's own client, which knows one host key alone. Raises CalledProcessError."""
    known_hosts = here.folder / "known_hosts"
    known_hosts.write_text(f"[127.0.0.1]:{here.qemu.port} {known or here.known_keys()[-1]}\n")
    options = {
        "UserKnownHostsFile": str(known_hosts),
        "StrictHostKeyChecking": "yes",
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "60",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    command_line = ["ssh", *words, "-i", str(here.key), "-p", str(here.qemu.port), "winhost@127.0.0.1", command]
    return subprocess.run(command_line, capture_output=True, text=True, timeout=600, check=True).stdout


def wait_for_it(here: QemuWorld) -> None:
    end = time.monotonic() + LATE
    while time.monotonic() < end:
        try:
            inside(here, "true")
        except subprocess.CalledProcessError:
            time.sleep(1)
        else:
            return
    raise AssertionError(here.qemu.console.read_text("utf-8", "replace")[-500:])


def test_it_is_set_up_and_rid_of_its_seed(here: QemuWorld, disk: GuestDisk) -> None:
    with pytest.raises(RunInterrupted, match="no prebuilt modules of NVIDIA's driver"):  # its image knows no archive
        here.apply(here.plan())
    here.without += ("drivers",)
    steps = [event.step for event in here.events if event.kind == "step" and event.step]
    told = {"VmSeed": "stage", "VmPower": "state", "SshHostKey": "prepared"}
    of_guest = [(step.resource, step.desired.get(told[step.resource])) for step in steps if step.resource in told]
    assert of_guest == [
        ("VmSeed", "attached"), ("VmPower", "running"), ("SshHostKey", True), ("VmSeed", None), ("SshHostKey", None),
        ("VmSeed", "retired"),
    ], here.events  # fmt: skip
    assert here.made.dvd_files == [""]
    assert not [path for path in here.machine.files.list_below("D:") if path.endswith(".iso")]
    assert list(here.plan().steps) == []
    sure("qemu-img", "check", "-f", "vhdx", str(disk.path))


def test_it_is_known_by_a_key_that_it_made_itself(here: QemuWorld) -> None:
    (own,) = here.known_keys()
    assert own != disc_of(here).public_key
    assert inside(here, "cat /etc/ssh/ssh_host_ed25519_key.pub").startswith(own)
    with pytest.raises(subprocess.CalledProcessError) as caught:
        inside(here, "true", disc_of(here).public_key)
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in caught.value.stderr


def test_it_is_who_the_seed_says(here: QemuWorld) -> None:
    said = inside(
        here,
        "hostname; cd /var/lib/cloud; sudo cat data/instance-id instance/datasource /etc/cloud/cloud-init.disabled;"
        "ip -4 -brief address show eth0; ip route show default; sudo -n id -u; "
        "mokutil --sb-state; findmnt -n -b -o SIZE /",
    )
    for part in ("llm-02", here.made.guid, "DataSourceNoCloud", "Written by winhost", f"{GUEST}/24", "via 192.0.2.1"):
        assert part in said, part
    assert "SecureBoot enabled" in said
    system = HostFacts(here.facts()).the(LinuxSystem)
    assert (system.id, system.version, system.secure_boot) == ("ubuntu", "24.04", True)


def test_its_boot_log_is_text_on_the_first_serial_port_and_has_no_key(here: QemuWorld) -> None:
    text = here.qemu.console.read_text("utf-8", "replace")
    assert "Linux version" in text
    assert "Secure boot enabled" in text
    assert f"| {GUEST} |".replace(" ", "") in text.replace(" ", "")
    assert "PRIVATE KEY" not in text
    private = [line for line in disc_of(here).private_key.splitlines() if "KEY" not in line and line]
    assert private
    assert not [line for line in private if line in text]


def test_a_second_start_keeps_its_key(here: QemuWorld) -> None:
    (own,), boot = here.known_keys(), inside(here, "cat /proc/sys/kernel/random/boot_id")
    here.machine.turn_vm_off(here.made.guid)  # as where its power fails
    here.machine.start_vm(here.made.guid)
    assert here.made.seeds_at_starts[1:] == [None]
    wait_for_it(here)
    assert here.known_keys() == [own]
    assert inside(here, "cat /proc/sys/kernel/random/boot_id") != boot
    assert "disabled" in inside(here, "cloud-init status || true")
    assert list(here.plan().steps) == []


# ---- the same machine as one of its own


@pytest.fixture
def own(here: QemuWorld, line: Line) -> Line:
    """The command line, with the guest as a machine of its own in its fleet file."""
    ssh = {"user": "winhost", "port": here.qemu.port, "key": f"file:{here.key}", "host_key": here.known_keys()[-1]}
    fleet = {
        "schema": "winhost.fleet/1",
        "hosts": {"llm-02": {"kind": "linux", "address": "127.0.0.1", "ssh": ssh | SLOW}},
    }
    (line.folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    return line


def test_it_is_read_as_a_machine_of_its_own(own: Line) -> None:
    said = own("detect", "llm-02", "--json")
    assert said.code == 0, said.err
    resources = said.result["facts"]["resources"]
    system = resources["LinuxSystem"][0]["state"]
    assert (system["secure_boot"], system["systemd"], system["simulated"], system["cgroups"]) == (True, True, False, 2)
    assert system["virtualization"] in ("kvm", "qemu")
    assert {"sda"} <= {each["key"]["disk"] for each in resources["LinuxDisk"]}
