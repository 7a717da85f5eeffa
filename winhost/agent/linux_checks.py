# Part of the agent: validation of the new text of a file, before it replaces the old one.
from __future__ import annotations

import json
import re
import secrets
import shutil
import stat
from pathlib import Path

from winhost.agent.linux_agent import AgentFault, find_program, run
from winhost.agent.linux_files import file_status, put, read_file

CHECKS = "/run/winhost"


def validate(path: str, text: str) -> None:
    """Validate a text with the program that will read it. Raises AgentFault with the program's message."""
    validators = (
        ("/etc/ssh/sshd_config.d/", validate_sshd),
        ("/etc/sudoers.d/", validate_sudoers),
        ("/etc/netplan/", validate_netplan),
        ("/etc/nftables.d/", validate_nft),
        ("/etc/systemd/system/", validate_unit),
        ("/usr/local/lib/systemd/system/", validate_unit),
        ("/opt/winhost/gateway-", validate_gateway),
        ("/etc/docker/daemon.json", validate_json),
    )
    folder = f"{CHECKS}/check-{secrets.token_hex(8)}"
    for start, validator in validators:
        if path.startswith(start):
            try:
                validator(path, text, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def invalid(path: str, program: str, output: str, folder: str) -> AgentFault:
    message = f"{program} refuses the new {path}: {output.replace(folder, '').strip()[-1000:]}"
    return AgentFault("Winhost.NotValid", "InvalidData", message, program)


def check_with(program: str, path: str, folder: str, *arguments: str) -> None:
    """Run a program that checks the file. Raises AgentFault with its message if it refuses the file."""
    done = run(program, *arguments)
    if done.code != 0:
        raise invalid(path, program, done.errors + done.output, folder)


def copy_folder_with(path: str, text: str, folder: str) -> None:
    """Copy the folder of a file, with the new text for this file."""
    for each in Path(path).parent.glob("*"):
        found = file_status(str(each))
        if found is not None and stat.S_ISREG(found.st_mode):
            put(f"{folder}/{each.name}", read_file(str(each)).decode("utf-8", "replace"), 0o600)
    put(f"{folder}/{Path(path).name}", text, 0o600)


def validate_sshd(path: str, text: str, folder: str) -> None:
    copy_folder_with(path, text, f"{folder}/sshd_config.d")
    main = read_file("/etc/ssh/sshd_config").decode("utf-8", "replace")
    inside = re.sub(r"(?:/etc/ssh/)?sshd_config\.d/", f"{folder}/sshd_config.d/", main)
    put(f"{folder}/sshd_config", inside, 0o600)
    check_with("sshd", path, folder, "-t", "-f", f"{folder}/sshd_config")


def validate_sudoers(path: str, text: str, folder: str) -> None:
    put(f"{folder}/sudoers", text, 0o440)
    check_with("visudo", path, folder, "-c", "-f", f"{folder}/sudoers")


def validate_netplan(path: str, text: str, folder: str) -> None:
    copy_folder_with(path, text, f"{folder}/etc/netplan")
    check_with("netplan", path, folder, "generate", "--root-dir", folder)


def validate_nft(path: str, text: str, folder: str) -> None:
    put(f"{folder}/rules.nft", text, 0o600)
    check_with("nft", path, folder, "-c", "-f", f"{folder}/rules.nft")


def validate_unit(path: str, text: str, folder: str) -> None:
    """Refuse a unit of which systemd would ignore a part. A program that a later step installs may be missing."""
    unit, _, drop_in = path.partition("/systemd/system/")[2].partition("/")
    unit = unit[: -len(".d")] if drop_in else unit
    if find_program("systemd-analyze") is None or not unit.endswith(
        (".service", ".socket", ".path", ".timer", ".mount")
    ):
        return
    # A template is checked as one of its instances.
    unit = unit.replace("@.", "@winhost.")
    if drop_in:
        put(f"{folder}/{unit}", unit_file_text(unit))
    put(f"{folder}/{unit}.d/{drop_in}" if drop_in else f"{folder}/{unit}", text)
    output = run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}").errors.splitlines()
    faults = [line for line in output if re.search(rf"{re.escape(folder)}\S*:[0-9]+: |bad unit file setting", line)]
    if faults:
        raise invalid(path, "systemd-analyze", "; ".join(output), folder)


def unit_file_text(unit: str) -> str:
    """Return the text of a unit's file, or a minimal valid one if there is none yet."""
    found = run("systemctl", "show", "--property=FragmentPath", "--value", "--", unit).output.strip()
    if found.startswith(("/usr/lib/", "/lib/", "/etc/", "/run/")) and Path(found).is_file():
        return read_file(str(Path(found).resolve())).decode("utf-8", "replace")
    return "[Service]\nExecStart=/bin/true\n" if unit.endswith(".service") else "[Unit]\n"


def validate_json(path: str, text: str, folder: str) -> None:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise invalid(path, "json", str(error), folder) from None
    if not isinstance(found, dict):
        raise invalid(path, "json", "it is no object", folder)


def validate_gateway(path: str, text: str, folder: str) -> None:
    """Refuse settings that allow plain HTTP, except in the folder for which the user has to agree to that."""
    if path.endswith("/settings.json"):
        validate_json(path, text, folder)
        if "-plain-http-" not in path and json.loads(text).get("plain_http_beyond_this_machine"):
            raise invalid(path, "winhost", "plain HTTP beyond this machine belongs in gateway-plain-http-...", folder)
