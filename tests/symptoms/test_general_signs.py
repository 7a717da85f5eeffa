"""A general word never leads with one cause that is put forward as sure."""

from __future__ import annotations

import json

from tests.rows import each_row
from tests.symptoms.engine_sentences import SENTENCES, is_general, is_shared
from winhost.symptoms.diagnosis import diagnose
from winhost.symptoms.table import Symptom, symptoms

# What any program says of any failure, in Linux, in Windows, and over the network, alone and in a usual frame.
WORDS = (
    "Access is denied.",
    "Access denied",
    "Permission denied",
    "Operation not permitted",
    "EPERM",
    "EACCES: permission denied",
    "Invalid argument",
    "EINVAL",
    "No such file or directory",
    "ENOENT",
    "No such device",
    "Input/output error",
    "Device or resource busy",
    "Cannot allocate memory",
    "Operation not supported",
    "Function not implemented",
    "Connection refused",
    "Connection timed out",
    "Connection reset by peer",
    "Broken pipe",
    "No route to host",
    "Network is unreachable",
    "timed out",
    "timeout",
    "Segmentation fault (core dumped)",
    "Killed",
    "Unknown error",
    "Unspecified error",
    "Internal error",
    "An unexpected error occurred.",
    "The parameter is incorrect.",
    "The request is not supported.",
    "The system cannot find the file specified.",
    "The system cannot find the path specified.",
    "Element not found.",
    "Catastrophic failure",
    "Incorrect function.",
    "Not found",
    "Unauthorized",
    "Forbidden",
    "Bad Request",
    "Internal Server Error",
    "Service Unavailable",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "500 Internal Server Error",
    "503 Service Unavailable",
    "failed with exit code 1",
    "returned non-zero exit status 1",
    "exit status 127",
    "exited with code 137",
    "error code 5",
    "error code 2",
    "error code 87",
    "Error 5",
    "System error 5 has occurred.",
    "(0x80004005)",
    "(0x80070002)",
    "(0x80070003)",
    "(0x80070005)",
    "(0x80070057)",
    "(0x80070490)",
    "(0x8007000E)",
    "(0x80070032)",
    "(0x8000FFFF)",
    "0xC0000001",
    "0xC0000022",
    "errno 1",
    "errno 13",
    "[Errno 2] No such file or directory",
    "[Errno 13] Permission denied: '/srv/file'",
)
FRAMES = ("{}", "Error: {}", "tool: cannot open '/srv/file': {}", "2026-11-28 12:00:00 ERROR run failed: {}")


def sure_of_one_cause(symptom: Symptom) -> bool:
    return symptom.severity != "unverified" and len(symptom.causes) == 1


@each_row("word", WORDS)
def test_a_general_word_leads_to_no_single_cause(word: str) -> None:
    for frame in FRAMES:
        told = diagnose([frame.format(word)], "log").found
        sure = [each.code for each in told if sure_of_one_cause(symptoms()[each.code])]
        assert sure == [], frame.format(word)


# And behind the name of a program that many symptoms are about.
PROGRAMS = [
    "ansible",
    "docker",
    "podman",
    "kubectl",
    "nvidia-container-cli",
    "nvidia-smi",
    "dcgmi",
    "NVRM",
    "vfio-pci",
    "qemu",
    "wsl",
    "ssh",
    "sshd",
    "WinRM",
    "efibootmgr",
    "mokutil",
    "cryptsetup",
    "netplan",
    "cloud-init",
    "casper",
    "subiquity",
    "ipmitool",
    "redfish",
    "iDRAC",
    "bcdedit",
    "reagentc",
    "pnputil",
    "diskpart",
    "dism",
    "rufus",
    "Start-VM",
    "Get-VM",
    "Mount-VHD",
    "New-PSSession",
    "Invoke-Command",
    "Dismount-VMHostAssignableDevice",
    "Add-VMGpuPartitionAdapter",
    "Hyper-V",
]
# There the word is what the program itself is: not found.
SAID_BY_THE_PROGRAM = {("efibootmgr", "Not found", "grub-install.no-efibootmgr")}


@each_row("program", PROGRAMS)
def test_a_general_word_of_a_program_leads_to_no_single_cause(program: str) -> None:
    sure = {
        (program, word, each.code)
        for word in WORDS
        for each in diagnose([f"{program}: {word}"], "log").found
        if sure_of_one_cause(symptoms()[each.code])
    }
    assert sure <= SAID_BY_THE_PROGRAM


# The same words as a whole sign, where nothing beside them (like, near) narrows it.
BARE = {word.casefold().strip("().") for word in WORDS}


def test_no_symptom_with_one_sure_cause_has_a_general_word_as_its_sign() -> None:
    general = {
        f"{symptom.id}: {sign.text}"
        for symptom in symptoms().values()
        if sure_of_one_cause(symptom)
        for sign in symptom.signs
        if sign.text.casefold().strip("(). ") in BARE and not sign.when
    }
    assert general == set()


def test_no_sentence_of_an_engine_has_only_common_words() -> None:
    rows = json.loads(SENTENCES.read_bytes())
    assert {name: [sign for sign in row["signs"] if is_general(sign)] for name, row in rows.items()} == {
        name: [] for name in rows
    }


def test_a_sentence_that_other_programs_say_counts_beside_the_name_of_the_engine() -> None:
    rows = json.loads(SENTENCES.read_bytes())
    assert [sign for name, row in rows.items() for sign in row["signs"] if is_shared(sign, name)] == []
    sentence = "ValueError: Failed to parse JSON content from file"
    assert diagnose([f'File "/srv/train.py", line 8\n{sentence}'], "log").found == ()
    assert diagnose([f'File "/venv/lib/vllm/x.py", line 8\n{sentence}'], "log").found[0].subject == "vLLM and SGLang"
