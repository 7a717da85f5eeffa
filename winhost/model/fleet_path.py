"""Finds the user's fleet.yaml. Shell completion uses this module, so that it imports little."""

import os
from pathlib import Path

from winhost.model.errors import UsageError, visible

_SMALLEST_FLEET = r"""Add a host, which asks for its password and writes it: winhost host add USER@ADDRESS
Or write one:
  schema: winhost.fleet/1
  hosts:
    gpu-01:
      address: gpu-01.example.com
      transport:
        user: EXAMPLE\svc-gpu
        password: env:GPU01_PASSWORD"""


def find_fleet(path: Path | None) -> Path:
    """Return the named file, else that in WINHOST_FLEET, else ./fleet.yaml, else the one in the user's configuration.

    Raises UsageError: NoFleet.
    """
    named = path or os.environ.get("WINHOST_FLEET")
    paths = (Path(named),) if named else (Path("fleet.yaml"), config_folder() / "fleet.yaml")
    if named and paths[0].is_dir():
        paths = (paths[0] / "fleet.yaml",)  # the folder of a lab
    for each in paths:
        if each.exists():
            return each
    looked = ", then ".join(visible(str(each)) for each in paths)
    raise UsageError("NoFleet", what=f"no fleet.yaml: looked for {looked}", hint=_SMALLEST_FLEET)


def config_folder() -> Path:
    from platformdirs import user_config_path

    return user_config_path("winhost", appauthor=False)
