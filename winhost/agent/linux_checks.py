# Part of the agent, the new text of a file, judged before it takes the place of the old one.
from __future__ import annotations

import json
import re
import secrets
import shutil
import stat
from pathlib import Path

from winhost.agent.linux_agent import AgentFault, place_of, run
from winhost.agent.linux_files import content, put, status

CHECKS = "/run/winhost"


def validate(path: str, text: str) -> None:
    """Validate a text with the program that will read it. Raises AgentFault with what that says."""
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


def invalid(path: str, program: str, said: str, folder: str) -> AgentFault:
    message = f"{program} refuses the new {path}: {said.replace(folder, '').strip()[-1000:]}"
    return AgentFault("Winhost.NotValid", "InvalidData", message, program)


def accepted_by(program: str, path: str, folder: str, *arguments: str) -> None:
    """Raises AgentFault where the program refuses the file, with what it says."""
    done = run(program, *arguments)
    if done.code != 0:
        raise invalid(path, program, done.errors + done.output, folder)


def copy_beside(path: str, text: str, folder: str) -> None:
    """The files of a folder as they are, with the new one among them."""
    for each in Path(path).parent.glob("*"):
        found = status(str(each))
        if found is not None and stat.S_ISREG(found.st_mode):
            put(f"{folder}/{each.name}", content(str(each)).decode("utf-8", "replace"), 0o600)
    put(f"{folder}/{Path(path).name}", text, 0o600)


def validate_sshd(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/sshd_config.d")
    main = content("/etc/ssh/sshd_config").decode("utf-8", "replace")
    inside = re.sub(r"(?:/etc/ssh/)?sshd_config\.d/", f"{folder}/sshd_config.d/", main)
    put(f"{folder}/sshd_config", inside, 0o600)
    accepted_by("sshd", path, folder, "-t", "-f", f"{folder}/sshd_config")


def validate_sudoers(path: str, text: str, folder: str) -> None:
    put(f"{folder}/sudoers", text, 0o440)
    accepted_by("visudo", path, folder, "-c", "-f", f"{folder}/sudoers")


def validate_netplan(path: str, text: str, folder: str) -> None:
    copy_beside(path, text, f"{folder}/etc/netplan")
    accepted_by("netplan", path, folder, "generate", "--root-dir", folder)


def validate_nft(path: str, text: str, folder: str) -> None:
    put(f"{folder}/rules.nft", text, 0o600)
    accepted_by("nft", path, folder, "-c", "-f", f"{folder}/rules.nft")


def validate_unit(path: str, text: str, folder: str) -> None:
    """Refuse a unit of which systemd would ignore a part; a program that a later step brings may be missing."""
    unit, _, drop_in = path.partition("/systemd/system/")[2].partition("/")
    unit = unit[: -len(".d")] if drop_in else unit
    if place_of("systemd-analyze") is None or not unit.endswith((".service", ".socket", ".path", ".timer", ".mount")):
        return
    # A template is read as one of its instances.
    unit = unit.replace("@.", "@winhost.")
    if drop_in:
        put(f"{folder}/{unit}", fragment(unit))
    put(f"{folder}/{unit}.d/{drop_in}" if drop_in else f"{folder}/{unit}", text)
    said = run("systemd-analyze", "verify", "--man=no", f"{folder}/{unit}").errors.splitlines()
    faults = [line for line in said if re.search(rf"{re.escape(folder)}\S*:[0-9]+: |bad unit file setting", line)]
    if faults:
        raise invalid(path, "systemd-analyze", "; ".join(said), folder)


def fragment(unit: str) -> str:
    """The file of a unit, or what has no fault where there is none yet."""
    found = run("systemctl", "show", "--property=FragmentPath", "--value", "--", unit).output.strip()
    if found.startswith(("/usr/lib/", "/lib/", "/etc/", "/run/")) and Path(found).is_file():
        return content(str(Path(found).resolve())).decode("utf-8", "replace")
    return "[Service]\nExecStart=/bin/true\n" if unit.endswith(".service") else "[Unit]\n"


def validate_json(path: str, text: str, folder: str) -> None:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise invalid(path, "json", str(error), folder) from None
    if not isinstance(found, dict):
        raise invalid(path, "json", "it is no object", folder)


def validate_gateway(path: str, text: str, folder: str) -> None:
    """Keys go over the network in clear text only from another folder, which asks for consent."""
    if path.endswith("/settings.json"):
        validate_json(path, text, folder)
        if "-plain-http-" not in path and json.loads(text).get("plain_http_beyond_this_machine"):
            raise invalid(path, "winhost", "plain HTTP beyond this machine belongs in gateway-plain-http-...", folder)
