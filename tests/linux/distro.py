"""A Debian in the state of a new WSL distro: without sshd, address and keys. Only WSL starts it."""

import subprocess

from tests.linux.debian import Debian, sure
from tests.processes import PATIENCE_S

# As the host win11-wsl-served of the lab has it.
ACCOUNT, NAME = "winhost", "Ubuntu-24.04"
IMAGE = "9b2f7730dc68227dd04a9f3e5eab86ad85caf556b8606ad94f1f29ff5c4fd3f5"
STAGED = f"C:\\ProgramData\\winhost\\files\\{IMAGE}-ubuntu-24.04.4-wsl-amd64.wsl"

CONF = "[boot]\nsystemd=true\n"  # as images of Ubuntu have it
WSLINFO = "#!/bin/sh\necho bridged\n"


class Distro(Debian):
    """A distro. It has a GPU if there is a file for one in /dev."""

    devices = ("/dev/null:/dev/dxg",)

    def _furnish(self) -> None:
        sure("chroot", str(self.root), "dpkg", "--purge", "openssh-server")
        (self.root / "etc/wsl.conf").write_text(CONF)
        program = self.root / "usr/bin/wslinfo"
        program.write_text(WSLINFO)
        program.chmod(0o755)

    def _begin(self) -> None:
        pass

    def enabled(self, unit: str) -> str:
        done = subprocess.run(
            self.inside("systemctl", "is-enabled", unit), capture_output=True, text=True, timeout=PATIENCE_S
        )
        return done.stdout.strip()

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def exists(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()
