"""A real Debian that is restarted: systemd goes down and up, and sshd shows the same key of another boot."""

from pathlib import Path

import pytest

from tests.connect.sshd import keypair, served
from tests.errors import raises
from tests.linux.debian import ADAPTERS, OUTSIDE, PREFIX, Debian, sure
from winhost.connect.reboot import Patience
from winhost.connect.ssh import SshConnector
from winhost.engine.host_session import HostSession
from winhost.engine.progress import ProgressEvent

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # they take turns, and one is fetched


def test_it_is_asked_to_restart_and_waited_for(debian: Debian) -> None:
    events: list[ProgressEvent] = []
    session = HostSession(debian.connector(), Patience(deadline=120, first=0.2, longest=1), events.append)
    old = session.boot_id()
    assert debian.run("cat", "/proc/sys/kernel/random/boot_id").strip() == old
    with debian.kept_going():
        new = session.restart(old)
    assert new == session.boot_id() != old
    assert session.state("LinuxBoot", {}) == {"boot_id": new, "ready": True}
    assert session.restart(old) == new, "another boot runs already"
    session.close()


def test_one_that_stays_down_is_told_of(debian: Debian) -> None:
    session = HostSession(debian.connector(), Patience(deadline=10, first=0.2, longest=1), lambda event: None)
    old = session.boot_id()
    with raises("NotBack", match="was not back 10 s after its restart"):
        session.restart(old)  # nobody starts it again
    debian.stop()
    debian.start()
    assert session.restart(old) != old
    session.close()


def test_an_adapter_that_an_earlier_machine_left_is_in_nobodys_way(debian: Debian) -> None:
    session = HostSession(debian.connector(), Patience(deadline=300, first=0.2, longest=1), lambda event: None)
    before = session.boot_id()
    debian.stop()
    old = f"{ADAPTERS}0"
    sure("ip", "link", "add", old, "type", "veth", "peer", "name", f"{old}-peer")
    sure("ip", "address", "add", f"{OUTSIDE}/{PREFIX}", "dev", old)
    sure("ip", "link", "set", old, "up")
    debian.start()
    assert not Path("/sys/class/net", old).exists()
    assert session.restart(before) != before, "another boot runs already"
    session.close()


def test_through_a_jump_host_it_is_back_by_the_known_key_alone(debian: Debian, tmp_path: Path) -> None:
    """Another key is reported at once, without waiting for the old one."""
    with served(tmp_path) as jump:
        known = debian.connector()
        through = SshConnector(known.target.model_copy(update={"jump": jump.login()}), known.program)
        session = HostSession(through, Patience(deadline=120, first=0.2, longest=1), lambda event: None)
        old = session.boot_id()
        with debian.kept_going():
            new = session.restart(old)
        assert new != old
        debian.stop()
        own = debian.root / "etc/ssh/ssh_host_ed25519_key"
        own.unlink()
        keypair(own)
        debian.start()
        with raises("HostKeyRefused", match="gpu-03/debian at"):
            session.restart(new)
        session.close()
