# key {module: text}   state {options: text | null, blacklisted: bool, at_boot: bool, initramfs_due: bool, loaded: bool,
# restart_due: bool}
from __future__ import annotations

from winhost.agent.linux_head import *

# A call without a key lists these modules, loaded or not.
KNOWN_MODULES = ("nouveau", "nvidia", "nvidia_drm", "nvidia_uvm")
INITRAMFS_DUE = f"{STATE_FOLDER}/initramfs-due"
OPTION = r"[a-zA-Z0-9_]+=[!-~]+"
MODULE_NOTE = "# Written by winhost.\n"


@reads("KernelModule", module=text_check(r"[a-z0-9_]+", "a module, with _ for -"))
def kernel_modules(key: Key | None) -> Found:
    for name in [key["module"]] if key else KNOWN_MODULES:
        yield {"module": name}, kernel_module(name)


def modprobe_file(name: str) -> str:
    return f"/etc/modprobe.d/winhost-{name}.conf"


def load_file(name: str) -> str:
    return f"/etc/modules-load.d/winhost-{name}.conf"


def kernel_module(name: str) -> State:
    lines = read_own_lines(name)
    options = [line.partition(f"options {name} ")[2] for line in lines if line.startswith(f"options {name} ")]
    blacklisted = f"blacklist {name}" in lines
    loaded = file_status(f"/sys/module/{name}/initstate") is not None
    return {
        "options": options[0] if options else None,
        "blacklisted": blacklisted,
        "at_boot": file_status(load_file(name)) is not None,
        "initramfs_due": file_status(INITRAMFS_DUE) is not None,
        "loaded": loaded,
        "restart_due": loaded
        and (blacklisted or any(has_other_live_value(name, each) for each in " ".join(options).split())),
    }


def read_own_lines(name: str) -> list[str]:
    """Return the lines of winhost's file for a module. Raises AgentFault if somebody else changed the file."""
    text = read_text(modprobe_file(name))
    if text is None:
        return []
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    known = (f"options {name} ", f"blacklist {name}")
    if not text.startswith(MODULE_NOTE) or not all(line.startswith(known) for line in lines) or len(lines) > 2:
        raise wrong_state(f"{modprobe_file(name)} was changed by hand; it is left alone.")
    return lines


def has_other_live_value(name: str, option: str) -> bool:
    """Tell whether the loaded module has another value of an option. Parameters that it hides count as equal."""
    parameter, _, desired = option.partition("=")
    text = read_text(f"/sys/module/{name}/parameters/{parameter}")
    if text is None:
        return False
    found, flags = text.strip(), {"Y": "1", "N": "0", "y": "1", "n": "0"}
    return flags.get(found, found) != flags.get(desired, desired)


@changes("KernelModule", "options", "blacklisted", "at_boot", "initramfs_due", "restart_due")
def change_kernel_module(key: Key, desired: State, how: State) -> None:
    name = key["module"]
    after = dict(kernel_module(name), **desired)
    if desired.get("initramfs_due") is True or desired.get("restart_due") is True:
        raise wrong_state("An initramfs is only ever brought up to date, and a restart only ever done.")
    if after["options"] is not None:
        check_text(f"{OPTION}( {OPTION})*", after["options"], "options, as NAME=VALUE")
    if set(desired) - {"at_boot", "restart_due"}:
        # Recorded before the change, so that the initramfs is rebuilt even after an interruption.
        put(INITRAMFS_DUE, "")
        write_module_file(name, after)
        rebuild_initramfs(how)
    if "at_boot" in desired:
        put_or_remove(load_file(name), f"{MODULE_NOTE}{name}\n" if desired["at_boot"] else None)
    if kernel_module(name)["restart_due"]:
        warn(f"{name} runs as before until this Linux restarts.")


def write_module_file(name: str, after: State) -> None:
    lines = [f"options {name} {after['options']}\n"] if after["options"] is not None else []
    lines += [f"blacklist {name}\n"] if after["blacklisted"] else []
    put_or_remove(modprobe_file(name), MODULE_NOTE + "".join(lines) if lines else None)


def rebuild_initramfs(how: State) -> None:
    """Rebuild the initramfs of all kernels, because a module may be loaded from it before the root file system."""
    within = seconds(how, 600)
    with waiting("making the initramfs again"):
        if find_program("update-initramfs"):
            run_checked("update-initramfs", "-u", "-k", "all", within=within)
            warn("The initramfs was made again.")
        elif find_program("dracut"):
            run_checked("dracut", "--force", "--regenerate-all", within=within)
            warn("The initramfs was made again.")
        elif file_status("/boot/initrd.img") is not None:
            raise AgentFault("Winhost.NoProgram", "ObjectNotFound", "Nothing here makes an initramfs.")
    remove(INITRAMFS_DUE)
