"""A remedy that destroys something says what is lost, or what to save first."""

from __future__ import annotations

import re

from tests.rows import each_row
from winhost.knowledge.catalogue import remedies
from winhost.symptoms.diagnosis import diagnosis
from winhost.symptoms.table import symptoms

DESTROYS = re.compile(
    r"--unregister|winsock reset|system prune|podman machine rm|mig -d|mokutil --reset|wipefs|zero-superblock"
    r"|diskpart, .*\bclean\b|e2fsck|fsck -y|chkdsk \S+ /f|VMSavedState|VMSnapshot|\breg delete\b|mkfs|sgdisk -[eoZz]"
    r"|Clear-Disk|vssadmin delete"
)
WARNS = re.compile(
    r"delet|eras|\blost\b|\bsave\b|--export|aside|copy what|back (it )?up|only a new, empty"
    r"|\bstay\)|Never|restore points",
    re.IGNORECASE,
)


def test_a_remedy_that_destroys_something_warns() -> None:
    told = {f"{each.id}: {cause.do}" for each in symptoms().values() for cause in each.causes}
    told |= {f"{name}: {each.do}" for name, each in remedies().items()}
    assert [text for text in sorted(told) if DESTROYS.search(text) and not WARNS.search(text)] == []


# cmd expands %NAME%, PowerShell does not; DISM takes an image in a .wim only with this prefix.
NOT_AS_PRINTED = re.compile(r"\b(type|dir|ren|findstr|Get-\w+) %\w+%|/source:[A-Z]:\\\S+\.wim", re.IGNORECASE)


def test_commands_work_in_powershell_as_printed() -> None:
    told = {f"{each.id}: {cause.tell} {cause.do}" for each in symptoms().values() for cause in each.causes}
    told |= {f"{name}: {each.do}" for name, each in remedies().items()}
    assert [text for text in sorted(told) if NOT_AS_PRINTED.search(text)] == []


# A sign that stood with others whose first cause it contradicts, and what it leads to now.
LEADS_TO = {
    "curl: (60) SSL certificate problem: certificate has expired": "has really expired",
    "ssl: certificate is not yet valid": "clock of this machine",
    "Bad return status for module build on kernel: 6.17.9-generic": "older than the kernel",
    "Error! Your kernel headers for kernel 6.8.0-51-generic cannot be found.": "Headers of the running kernel",
    "kex_exchange_identification: Connection closed by remote host": "sshd does not run there",
    "EXT4-fs error (device sda2): ext4_find_entry:1466: inode #2": "Writing was cut off",
    "mount: /mnt/models: mount point does not exist.": "never made",
    "[h264_nvenc @ 01] Cannot load nvcuda.dll": "NVIDIA's driver is not installed",
    "PXE-E61: Media test failure, check cable": "No cable with a link",
    "E: Failed to fetch http://mirror/Packages.gz  Hash Sum mismatch": "proxy or mirror",
    "docker: invalid reference format.": "name was cut",
    'msg="NVIDIA driver too old"': "driver is older",
    "FailedScheduling 0/2 nodes are available: 2 Insufficient memory.": "requests more memory",
    "gguf_init_from_file: invalid magic characters 'vers'": "page of an error",
    "Invalid user token.": "token is wrong",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/system.slice": "own limit was reached",
    "llama runner process has terminated: unable to allocate backend buffer": "GPU memory does not hold",
    "llama_model_load: error loading model: unable to allocate Vulkan0 buffer": "Layers on the GPU",
    "Hyper-V failed to authenticate the primary server using Kerberos authentication. (0x8009030E)": "The other host",
    "WinRM: errorcode 0x8009030e occurred while using Kerberos, on the Hyper-V host": "service principal",
    "'SRV01-AutoRecovery.avhdx' because it is being used by another process. (0x80070020)": "still uses it",
    "Cannot load a virtual machine configuration because it is corrupt.": "file is damaged",
    "Cannot load a virtual machine configuration: General access denied error (0x80070005).": "may not read it",
    "Cannot load a virtual machine configuration: used by another process. (0x80070020)": "has the file open",
    "There is no module or parameter named 'lm_head.weight_scale' in LlamaForCausalLM": "quantization of the model",
    "Error: Failed to install boot files (bcdboot exit code 193)": "It ended with 193",
    "Wsl/Service/CreateInstance/CreateVm/ConfigureNetworking/HNS/0x80070424": "a service is missing",
    "Wsl/Service/CreateVm/ConfigureNetworking/HNS/0x80070422": "cannot start Internet Connection Sharing",
    "Max retries exceeded with url: /v1 ([WinError 10061] the target machine actively refused it)": "has not started",
    "could not open moddep file '/lib/modules/6.8.0-51-generic/modules.dep.bin'": "It is a container",
}
# Texts of other programs with the same words, of which nothing is known.
OF_OTHERS = (
    "VirtualBox: VM does not exist",
    "Calling 'http://169.254.169.254/latest/meta-data' failed: Connection timed out",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable: '/var/lock/file'",
    "Examining torch.classes raised: Tried to instantiate class '__path__._path', but it does not exist!",
    "slui: activation failed with 0x80072F8F",
    "ImageMagick: error: cannot load image logo.png",
    "ModuleNotFoundError: No module named 'uvloop'",
    "Grafana API error: Insufficient Permissions",
    "make: Unrecognized command: 'serve'",
    "argparse: Required argument not provided",
    "gettext: Failed to translate string 'Abort' in X: locale",
    "How to Turn off BitLocker",
    '{"error":"Unauthorized"}',
)


@each_row("text", LEADS_TO)
def test_a_sign_leads_to_the_cause_that_fits_it(text: str) -> None:
    found = diagnosis([text], "text").found
    assert LEADS_TO[text] in found[0].causes[0].sentence


@each_row("text", OF_OTHERS)
def test_the_same_words_of_other_programs_are_not_claimed(text: str) -> None:
    assert [each.code for each in diagnosis([text], "text").found if each.severity == "unsupported"] == []
