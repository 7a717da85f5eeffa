"""A remedy that destroys something says what is lost, or what to save first."""

from __future__ import annotations

import re

from tests.rows import each_row
from winhost.knowledge.catalogue import remedies
from winhost.symptoms.diagnosis import diagnose
from winhost.symptoms.table import symptoms

DESTROYS = re.compile(
    r"--unregister|winsock reset|system prune|podman machine rm|mig -d|mokutil --reset|wipefs|zero-superblock"
    r"|diskpart, .*\bclean\b|e2fsck|fsck -y|chkdsk \S+ /f|VMSavedState|VMSnapshot|\breg delete\b|mkfs|sgdisk -[eoZz]"
    r"|Clear-Disk|vssadmin delete|cloud-init clean"
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
NOT_AS_PRINTED = re.compile(
    r"\b(type|dir|ren|echo|findstr|Get-\w+) %\w+%|icacls [^;]*%\w+%|Get-Counter \"\\\\|/source:[A-Z]:\\\S+\.wim",
    re.IGNORECASE,
)


def test_commands_work_in_powershell_as_printed() -> None:
    told = {f"{each.id}: {cause.tell} {cause.do}" for each in symptoms().values() for cause in each.causes}
    told |= {f"{name}: {each.do}" for name, each in remedies().items()}
    assert [text for text in sorted(told) if NOT_AS_PRINTED.search(text)] == []


# `wsl --unmount` without a disk detaches all; a guard that is off for a try lets in what it guards against.
CHANGES = re.compile(r"--unmount|protection off|Stop-Service|Clear-Disk|cloud-init clean|\breg (add|delete)\b")


def test_a_way_to_tell_changes_nothing() -> None:
    told = {f"{each.id}: {cause.tell}" for each in symptoms().values() for cause in each.causes}
    assert [text for text in sorted(told) if CHANGES.search(text)] == []


def test_what_prints_a_recovery_password_says_so() -> None:
    told = {f"{each.id}: {cause.tell} {cause.do}" for each in symptoms().values() for cause in each.causes}
    assert [text for text in sorted(told) if "-protectors -get" in text and "recovery password" not in text] == []


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
    "launch failed: The Hyper-V Hypervisor is disabled. Please enable by": "feature is really off",
    "wslc container list: Error code: 0x800705b4": "session's VM hangs",
    "Add-RecoveryPasswordProtectorInternal : Zugriff verweigert": "policy or the TPM",
    "WSMan The service was unable to start the host process to process the given request.": "comes and goes",
    "Signing key on 3FC3FD92ABA3975D is not bound: DSA1024 is not considered secure since 2014-02-01T00": "DSA1024",
    "ERROR: An error occurred (code 0x80310008)": "not turned on",
    "ERROR: An error occurred (code 0x8031004D)": "hardware test",
    "ERROR: An error occurred (code 0x803100BE)": "which boot settings are checked",
    "ERROR: An error occurred (code 0x80310038)": "writes a key to a file",
    "schtasks: (4,2):Settings: 0x80041329": "element of its XML",
    "##[error][server]: Service responded with [8].": "no reason given",
    "FullyQualifiedErrorId : StorageWMI 42002,Add-PartitionAccessPath": "in use already",
    "FullyQualifiedErrorId : StorageWMI 42008,Resize-Partition": "volume with errors",
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
    "Invoke-Command { & app.exe }: The handle is invalid.",
    "WinRM-Plugin: CreateFile failed 0x80070006",
)


# Texts of other programs, or other failures, with a sign's words; and the row that must not claim them.
NOT_OF = {
    "Your subscription has been paused because you are out of credits": "hyperv.paused-critical",
    "Warning: /var is about to run out of disk space": "hyperv.paused-critical",
    "Event ID: 16060 Source: MyBackup": "hyperv.paused-critical",
    "Security log, Event ID: 5120, OCSP Responder Service Started": "hyperv.cluster-volume",
    "Security log, Event ID: 5142, a network share object was added.": "hyperv.cluster-volume",
    "Source: Foo Event ID: 14050": "hyperv.spn",
    "Failed to register service principal name for MSSQLSvc/host": "hyperv.spn",
    "Source: MSSQL Event ID: 20413": "hyperv.configuration-path",
    "Event ID 12565 Source VSS": "hyperv.mac-addresses",
    "Event ID 21502 Source CCM": "hyperv.migration-failed",
    "Live migration of instance 7f3 failed: libvirtError": "hyperv.migration-failed",
    "Event ID 20417 RADIUS": "hyperv.migration-slow",
    "zfs: Catastrophic failure while writing snapshot tank@a": "hyperv.checkpoint-not-deleted",
    "Failed to connect NIC eth0 to bridge br0": "hyperv.switch-port",
    "The computer must be restarted to complete the installation of the printer": "windows.feature-restart-first",
    "MySQL import Error: 1465 Triggers can not be created on system tables": "windows.servicing-xml",
    "MD5 is not considered secure since 2004": "apt.weak-key",
    "Signing key on my laptop is not bound to the account": "apt.weak-key",
    "The driver \\Driver\\nvlddmkm failed to load. Device: PCI\\VEN_10DE Status: 0xC0000365": "windows.umdf-late",
    "ERROR: An error occurred (code 0x80310036)": "bitlocker.fips",
    "ERROR: An error occurred (code 0x8031003B)": "bitlocker.tpm",
    "Get-BitLockerVolumeInternal : Access is denied.": "bitlocker.cmdlet-without-volume",
    "netplan apply: Failed to connect to system bus: No such file or directory": "installer.netplan-before-bus",
    "ERROR: INVALID_VERSION_LEVEL in document": "windows.storage-pool",
    "ci: Timed out waiting for dockerd to start": "wslc.session-timeout",
    "All nodes must be Windows Server (OS Build of your choice)": "wac.server-version",
    "The newsletter job failed with 0x80070015": "wsl.device-not-ready",
    "SELECT query returned 1622 rows": "windows-installer.log",
    "Rufus detected bootable media on the stick": "bitlocker.bootable-media",
    "backup agent could not initialize memory: Ran out of memory": "hyperv.memory-at-start",
    "Some tool: Failed to create partition: Insufficient system resources exist": "hyperv.memory-at-start",
    "user: only one VM can be active at a time in this lab": "podman.one-machine",
    "template: compiled_template:3: can't evaluate field X in type Y": "kubernetes.containerd-template",
    "The authorization of the user failed with error 401": "winrm.authorization-event",
    "Error: Could not find module './llama.dll.js'": "llamacpp.dll-dependency",
}


@each_row("text", NOT_OF)
def test_a_sign_does_not_claim_what_is_not_its_own(text: str) -> None:
    assert NOT_OF[text] not in [each.code for each in diagnose([text], "text").found]


@each_row("text", LEADS_TO)
def test_a_sign_leads_to_the_cause_that_fits_it(text: str) -> None:
    found = diagnose([text], "text").found
    assert LEADS_TO[text] in found[0].causes[0].sentence


@each_row("text", OF_OTHERS)
def test_the_same_words_of_other_programs_are_not_claimed(text: str) -> None:
    assert [each.code for each in diagnose([text], "text").found if each.severity == "unsupported"] == []
