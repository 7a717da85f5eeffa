# key {}   state {present: bool, fresh: bool, devices: [text]}
from __future__ import annotations

from winhost.agent.linux_head import *

# nvidia-cdi-refresh writes this file, too: the same device in two files would be a conflict, so that neither is used.
# The folder is emptied by a restart, after which the former driver store may be missing as well.
SPEC = "/run/cdi/nvidia.yaml"


def generate() -> tuple[str, ...]:
    return ("cdi", "generate", "--mode=wsl" if in_wsl() else "--mode=nvml", "--format=yaml")


@reads("CdiSpec")
def cdi_spec(key: Key | None) -> Found:
    if find_program("nvidia-ctk") is None:
        raise NotThereYet("DebianPackage")
    if find_gpus_on_bus() and not in_wsl() and loaded_driver() is None:
        raise NotThereYet("LinuxGpuDriver")
    present = file_status(SPEC) is not None
    state = {
        "present": present,
        "fresh": value(matches) if present else False,
        "devices": value(devices) if present else [],
    }
    yield {}, state


def matches() -> bool:
    """Tell whether the file is what nvidia-ctk would generate now, for the current driver store."""
    return lines(read_file(SPEC).decode("utf-8")) == lines(run_checked("nvidia-ctk", "--quiet", *generate()))


def lines(spec: str) -> list[str]:
    return sorted(line.strip() for line in spec.splitlines() if line.strip() not in ("", "---"))


def devices() -> list[str]:
    return sorted(re.findall(r"^\S+=\S+$", run_checked("nvidia-ctk", "--quiet", "cdi", "list"), re.MULTILINE))


@changes("CdiSpec", "present", "fresh")
def change_cdi_spec(key: Key, desired: State, how: State) -> None:
    if desired.get("present") is False:
        remove(SPEC)
    elif desired.get("fresh") is False:
        raise bad_request("A spec is made fresh or taken away, never stale.")
    else:
        run_checked("nvidia-ctk", "--quiet", *generate(), "--output=" + SPEC, within=seconds(how, 120))
