"""Codes are named however they are written, and numbers that are none are left alone."""

from pathlib import Path

from tests.rows import each_row
from winhost.symptoms import codes
from winhost.symptoms.codes import (
    WINDOWS,
    Code,
    _codes_by_name,
    _family_of,
    _names_by_section,
    describe_code,
    find_codes,
    find_described_codes,
    spellings,
)
from winhost.symptoms.diagnosis import diagnose

# What people paste, the code as it is shown, and its name.
PASTED = [
    ("HRESULT: 0x80070005", "0x80070005", "E_ACCESSDENIED"),
    ("failed with code -2147024891", "0x80070005", "E_ACCESSDENIED"),
    ("error 80070005", "0x80070005", "E_ACCESSDENIED"),
    ("E_ACCESSDENIED", "0x80070005", "E_ACCESSDENIED"),
    ("0x80070041", "0x80070041", "ERROR_NETWORK_ACCESS_DENIED"),
    ("Status: 0xC0000022", "0xC0000022", "STATUS_ACCESS_DENIED"),
    ("STATUS_ACCESS_DENIED", "0xC0000022", "STATUS_ACCESS_DENIED"),
    ("exit code -1073741819", "0xC0000005", "STATUS_ACCESS_VIOLATION"),
    ("exited with code 3221226505", "0xC0000409", "STATUS_STACK_BUFFER_OVERRUN"),
    ("0xD0000034", "0xD0000034", "STATUS_OBJECT_NAME_NOT_FOUND"),
    ("0x80240066", "0x80240066", "WU_E_INSTALL_USERCONTEXT_ACCESSDENIED"),
    ("Error 0x800F0845", "0x800F0845", None),
    ("0x800f0823", "0x800F0823", "CBS_E_NEW_SERVICING_STACK_REQUIRED"),
    ("0x80073CF3", "0x80073CF3", "ERROR_INSTALL_RESOLVE_DEPENDENCY_FAILED"),
    ("0x80072EFD", "0x80072EFD", "WININET_E_CANNOT_CONNECT"),
    ("0x80310018", "0x80310018", "FVE_E_TPM_NOT_OWNED"),
    ("0x8033809D", "0x8033809D", "ERROR_WSMAN_SECURITY_UNMAPPED"),
    ("0x80041017", "0x80041017", "WBEM_E_INVALID_QUERY"),
    ("Wsl/0x80040315", "0x80040315", "WSL_E_ELEVATION_NEEDED_TO_MOUNT_DISK"),
    ("System error 53 has occurred.", "Win32 error 53", "ERROR_BAD_NETPATH"),
    ("OSError: [WinError 1455]", "Win32 error 1455", "ERROR_COMMITMENT_LIMIT"),
    ("[SC] OpenService FAILED 1060:", "Win32 error 1060", "ERROR_SERVICE_DOES_NOT_EXIST"),
    ("the installer ended with exit code 1618", "Win32 error 1618", "ERROR_INSTALL_ALREADY_RUNNING"),
    ("STOP: 0x0000001A", "bugcheck 0x1A", "MEMORY_MANAGEMENT"),
    ("STOP 0x0000001A", "bugcheck 0x1A", "MEMORY_MANAGEMENT"),
    ("Stop code 0x1A", "bugcheck 0x1A", "MEMORY_MANAGEMENT"),
    ("Windows could not start the service: error 1450", "Win32 error 1450", "ERROR_NO_SYSTEM_RESOURCES"),
    ("The process was terminated with signal 9", "signal 9", "SIGKILL"),
    ("BugcheckCode 307", "bugcheck 0x133", "DPC_WATCHDOG_VIOLATION"),
    ("signal 11", "signal 11", "SIGSEGV"),
    ("code=killed, status=9/KILL", "signal 9", "SIGKILL"),
    ("SIGBUS", "signal 7", "SIGBUS"),
    ("exit code 139", "exit code 139", "SIGSEGV, 128 + 11"),
    ("status=226/NAMESPACE", "exit code 226", "EXIT_NAMESPACE"),
    ("[Errno 98]", "errno 98", "EADDRINUSE"),
    ("HTTP 503", "HTTP 503", "SERVICE_UNAVAILABLE"),
]


@each_row(("pasted", "code", "name"), PASTED)
def test_a_code_has_its_name_and_what_would_settle_it(pasted: str, code: str, name: str | None) -> None:
    named = [
        describe_code(each, 1)
        for each in (
            *(Code(WINDOWS, number) for number in find_codes(pasted.lower())),
            *(spoken for spoken, _ in find_described_codes(pasted, pasted.lower())),
        )
    ]
    assert (code, name) in {(each.code, each.name) for each in named}
    assert all(each.family and each.says and each.next for each in named)


# Numbers of other kinds: addresses, registers, sizes, counts, times, versions, words.
NUMBERS = [
    "[mem 0x80100000-0x801fffff]: assigned",
    "handle 0x80000000, reserved 0xc0000000",
    "kvm: unhandled rdmsr: 0xc0000080",
    "MSR 0xc0000103 code",
    "pc : 0x80241000 lr : 0x80070000",
    "Done. exit code 0 (0x00000000)",
    "exited with code 1",
    "took 2147942405 ns",
    "id 3221225506 of 4",
    "signal -60 dBm, signal 80 %",
    "traffic signal 3",
    "failed 3 times, 1060 lines",
    'GET /x HTTP/1.1" 404 153',
    "served 503 requests",
    "ERROR EngineCore EXIT ENABLED",
    "ERROR_COUNT=3 STATUS_OK",
    "port 1603, error rate 1.1000",
    "stop at 0x7e00",
    "range: start=0x00000000 stop=0x0000000a",
    "nonstop 0x1e",
    "ExecStop=0x1",
    "Sweep start 0x10 stop 0x50",
    "ERROR 2003 (HY000): Can't connect to MySQL server on '10.0.0.1' (111)",
    "Error 1062: Duplicate entry '1' for key 'PRIMARY'",
    "SQL Server Error: 1205, deadlock victim",
    "VBA run-time error 1004: application-defined",
    "error: 1450, epoch 5",
    "ATA error count: 1603",
    "modem: got signal 15 dBm, good",
    "chart with signal 13 plotted",
    "exit 143 on Interstate 80",
    "PC is at 0xc0371234 LR is at 0xc0350018",
    "ra: 0x80370102 Status: 1000a403",
    "vendor id 0x80041003 revision 2",
    "PCI BAR0 at 0xc035451f size 0x01000000",
    "offset=0xc0041234",
    "status register 0x8037026b read ok",
]


@each_row("text", NUMBERS)
def test_a_number_that_is_no_code_is_left_alone(text: str) -> None:
    assert list(find_codes(text.lower())) == []
    assert list(find_described_codes(text, text.lower())) == []


def test_a_stop_of_windows_alone_is_read_as_events_write_it() -> None:
    assert [codes.normalize_single_code(text) for text in ("0x00000116", "0x0000007e", "0x0", "278")] == [
        "bugcheck 0x116",
        "bugcheck 0x7E",
        "0x0",
        "278",
    ]


def test_a_name_is_no_cause_and_says_less_than_a_symptom() -> None:
    named = diagnose(["exit code 139"], "text")
    assert named.found == ()
    assert [each.name for each in named.unknown_codes] == ["SIGSEGV, 128 + 11"]
    known = diagnose(["Error code: Wsl/0x80070569\nexit code 139"], "text")
    assert known.unknown_codes == ()


def test_the_name_of_a_code_leads_to_its_symptom_where_nothing_else_is_known() -> None:
    (found,) = diagnose(["two lines\nHNS said HCN_E_DEGRADED_OPERATION"], "text").found
    assert (found.code, found.line) == ("hns.degraded", 2)
    other = diagnose(["HCN_E_DEGRADED_OPERATION\nError code: Wsl/0x80070569"], "text")
    assert [each.code for each in other.found] == ["wsl.service-logon"]


def test_every_code_in_the_file_has_a_family() -> None:
    without = [
        f"0x{number:08X} {name}"
        for section in ("hresult", "ntstatus")
        for number, name in _names_by_section()[section].items()
        if _family_of(Code(WINDOWS, number)) is None
    ]
    assert without == []
    assert all(_family_of(Code(section, 1)) for section in _names_by_section().keys() - {"hresult", "ntstatus"})


def test_the_file_of_names_is_small_and_sorted() -> None:
    data = (Path(codes.__file__).parent / "code_names.txt").read_bytes()
    assert len(data) < 250_000
    assert all(list(names) == sorted(names) for names in _names_by_section().values())


def test_a_name_leads_to_its_number_and_back() -> None:
    for name in ("E_OUTOFMEMORY", "STATUS_NO_MEMORY", "HCS_E_HYPERV_NOT_INSTALLED", "HCN_E_NETWORK_NOT_FOUND"):
        number = _codes_by_name()[name].number
        assert list(find_codes(f"error {spellings(number)[0]}")) == [number]
        assert describe_code(_codes_by_name()[name], 1).name == name


def test_a_code_in_a_line_that_is_explained_needs_no_answer_of_its_own() -> None:
    line = "model requires more system memory (12.0 GiB) than is available (3.1 GiB), error 0x8007000E"
    assert diagnose([line], "log").unknown_codes == ()
    beside = diagnose([f"{line}\nanother step: 0x80070002"], "log").unknown_codes
    assert [code.name for code in beside] == ["ERROR_FILE_NOT_FOUND"]
