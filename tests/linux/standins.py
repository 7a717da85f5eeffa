"""Stand-ins for programs that cannot run in the Debian of the tests."""

import stat
from pathlib import Path

from tests.linux.debian import Debian

# What dockerd answers to --validate, and how it ends with settings that it does not know.
DOCKERD = """\
#!/usr/bin/python3
import json, os, signal, socket, sys
try:
    settings = json.load(open("/etc/docker/daemon.json"))
except FileNotFoundError:
    settings = {}
unknown = set(settings) - {"debug", "default-runtime", "features", "runtimes"}
if unknown:
    sys.exit("unable to configure the Docker daemon: the following directives don't match any configuration option: "
             + ", ".join(unknown))
if "--validate" in sys.argv:
    sys.exit()
if settings.get("default-runtime", "runc") not in ("runc", *settings.get("runtimes", {})):
    sys.exit("specified default runtime does not exist")  # only seen when it starts
with open("/run/docker.settings", "w") as file:
    json.dump(settings, file)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
signal.pause()
"""
DOCKER_UNIT = """\
[Service]
Type=notify
ExecStart=/usr/bin/dockerd
"""
DOCKER = """\
#!/bin/sh
[ "$1" = ps ] && cat /run/docker.containers 2>/dev/null
exit 0
"""

DRIVER = "580.95.05"
SMI = """\
#!/bin/sh
case "$1" in
-L) [ ! -e "{shown_once}" ] || echo "GPU 0: NVIDIA L4 (UUID: GPU-5f0e2d7a)" ;;
*) echo "00000000:01:00.0, GPU-5f0e2d7a, NVIDIA L4, 23034" ;;
esac
"""
MODINFO = f'#!/bin/sh\n[ "$1" != --field=version ] || echo {DRIVER}\n'


def put_program(root: Path, name: str, text: str) -> None:
    """Install a program in /usr/bin, for all users."""
    file = root / "usr/bin" / name
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def put_docker(root: Path) -> None:
    """Install a Docker that reads its settings when it starts, and has these containers."""
    put_dockerd(root)
    put_program(root, "docker", DOCKER)


def put_dockerd(root: Path) -> None:
    """Install only the daemon of Docker."""
    put_program(root, "dockerd", DOCKERD)
    (root / "etc/systemd/system/docker.service").write_text(DOCKER_UNIT)


def put_gpu(debian: Debian, shown_once: str = "/") -> None:
    """Add a GPU, which its driver lists once that file exists, until the next start."""
    put_program(debian.root, "nvidia-smi", SMI.format(shown_once=shown_once))
    put_program(debian.root, "modinfo", MODINFO)
    # Where a kernel says which driver runs; of a container /sys is a folder of systemd-nspawn's.
    debian.run("mount", "-o", "remount,rw", "/sys")
    debian.run("mkdir", "-p", "/sys/module/nvidia")
    debian.run("sh", "-c", f"echo {DRIVER} > /sys/module/nvidia/version")
