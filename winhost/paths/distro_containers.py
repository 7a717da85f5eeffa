"""The container settings inside the distro: a CDI specification of the GPUs, kept up to date, and Docker's settings."""

from collections.abc import Mapping

CDI_SERVICE_FILE = "/etc/systemd/system/winhost-cdi.service"
CDI_PATH_FILE = "/etc/systemd/system/winhost-cdi.path"


# The driver store that WSL mounts changes with the driver of Windows, which a running distro never sees: /usr/lib/wsl
# sends no change events (systemd.path), so each boot, and each new nvidia-ctk, writes the specification again.
# nvidia-cdi-refresh, from nvidia-container-toolkit 1.20 on, writes the same file; the same device in two files would be
# a conflict. It goes first.
CDI_SERVICE = """\
# Written by winhost.
[Unit]
Description=CDI specification of the GPUs that Windows lends
ConditionPathExists=/dev/dxg
ConditionPathExists=/usr/bin/nvidia-ctk
After=nvidia-cdi-refresh.service
Before=docker.service containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-ctk cdi generate --mode=wsl --format=yaml --output=/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
"""

CDI_PATH = """\
# Written by winhost.
[Unit]
Description=A new nvidia-ctk writes another CDI specification

[Path]
PathChanged=/usr/bin/nvidia-ctk
Unit=winhost-cdi.service

[Install]
WantedBy=multi-user.target
"""


# `docker run --gpus` and `--runtime nvidia` use this runtime.
DOCKER_FILE = "/etc/docker/daemon.json"
DOCKER_SETTINGS = """\
{
  "runtimes": {
    "nvidia": {
      "path": "nvidia-container-runtime",
      "runtimeArgs": []
    }
  }
}
"""

FILES: tuple[Mapping[str, str], ...] = (
    {
        "path": CDI_SERVICE_FILE,
        "text": CDI_SERVICE,
        "title": "The unit that writes the CDI specification",
        "why": "A Windows driver update moves the files that containers get; the specification is rebuilt at start.",
    },
    {
        "path": CDI_PATH_FILE,
        "text": CDI_PATH,
        "title": "The unit that watches nvidia-ctk",
        "why": "A new nvidia-ctk may find more of these files; the specification is rebuilt then, too.",
    },
    {
        "path": DOCKER_FILE,
        "text": DOCKER_SETTINGS,
        "title": "Docker's settings",
        "why": "With NVIDIA's runtime Docker gives GPUs to the containers that ask for them.",
    },
)
UNITS: tuple[Mapping[str, str], ...] = (
    {"name": "docker.service"},
    {"name": "winhost-cdi.service"},
    {"name": "winhost-cdi.path"},
)
