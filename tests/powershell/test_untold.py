"""Properties that Windows does not report are unknown, and never a harmless default."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.powershell.twins import Scripts, machine, scripts
from tests.rows import each_row

NOT_EXPOSED = "Winhost.NotExposed"
# Of the cmdlets that change rules of the firewall of VMs.
PARAMETERS = (
    "$InputObject, [switch]$Confirm, $ErrorAction, $Name, $DisplayName, $Direction, $VMCreatorId, $Protocol, "
    "$LocalPorts, $RemoteAddresses, $Action"
)


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripts]:
    with scripts() as running:
        yield running


@contextmanager
def instead(engine: Scripts, answers: Mapping[str, str]) -> Iterator[None]:
    """With these bodies of functions; `asks` in one is the call of what stood there."""
    for name, body in answers.items():
        engine.run(f"${{function:Kept-{name}}} = ${{function:{name}}}")
        engine.run(f"${{function:{name}}} = {{ {body.replace('asks', f'& Kept-{name}')} }}")
    try:
        yield
    finally:
        for name in answers:
            engine.run(f"${{function:{name}}} = ${{function:Kept-{name}}}; Remove-Item function:Kept-{name}")


def read(engine: Scripts, host: str, resource: str) -> list[dict[str, Any]]:
    (answer,) = engine.answers(machine(host), {"resource": resource, "verb": "get"})
    assert answer["ok"], answer
    return [each["state"] for each in answer["instances"]]


def told(state: Mapping[str, Any], name: str) -> Any:
    """A value, or the code for which it is unknown."""
    value = state[name]
    return value["unknown"]["code"].split(",")[0] if isinstance(value, dict) and "unknown" in value else value


CIM = """
    param($ClassName, $Namespace, $Filter, $ErrorAction)
    if ($ClassName -eq '{name}') {{
        return [pscustomobject]@{{ {properties} }}
    }}
    asks @PSBoundParameters
"""


@each_row(
    ("name", "properties", "unknown"),
    [
        (
            "Win32_Processor",
            "VirtualizationFirmwareEnabled = $null; SecondLevelAddressTranslationExtensions = $null",
            ("virtualization_enabled", "second_level_translation"),
        ),
        ("Win32_DeviceGuard", "AvailableSecurityProperties = $null", ("security_properties",)),
    ],
)
def test_a_property_without_a_value_is_unknown(
    engine: Scripts, name: str, properties: str, unknown: tuple[str, ...]
) -> None:
    with instead(engine, {"Get-CimInstance": CIM.format(name=name, properties=properties)}):
        (state,) = read(engine, "win11-pro-1gpu", "Firmware")
    assert {each: told(state, each) for each in unknown} == dict.fromkeys(unknown, NOT_EXPOSED)


def test_a_battery_that_does_not_say_whether_it_is_used_is_unknown(engine: Scripts) -> None:
    call = {"resource": "PowerSource", "verb": "get"}
    with instead(engine, {"Get-CimInstance": CIM.format(name="Win32_Battery", properties="BatteryStatus = $null")}):
        (answer,) = engine.answers(machine("win11-pro-1gpu"), call)
    assert answer["error"]["code"] == NOT_EXPOSED


# ---- BitLocker

VOLUME = """
    [pscustomobject]@{{
        MountPoint = '{mount}'; VolumeType = '{kind}'; VolumeStatus = {status}; EncryptionPercentage = {percentage}
        ProtectionStatus = '{protection}'
        KeyProtector = @([pscustomobject]@{{
            KeyProtectorId = '{{00000000-0000-4000-8000-00000000000A}}'; KeyProtectorType = 'TpmPin'
        }})
    }}
"""
LOCKED = VOLUME.format(mount="E:", kind="Data", status="$null", percentage="$null", protection="Unknown")
FOLDER = "\\\\?\\Volume{{00000000-0000-4000-8000-00000000000b}}\\"
OF_A_FOLDER = VOLUME.format(
    mount=FOLDER.format(), kind="OperatingSystem", status="'FullyEncrypted'", percentage="100", protection="Off"
)
OF_DATA = VOLUME.format(mount="E:", kind="Data", status="'FullyEncrypted'", percentage="100", protection="Off")
OF_WINDOWS = OF_DATA.replace("'Data'", "'OperatingSystem'")
ENCRYPTABLE = CIM.format(
    name="Win32_EncryptableVolume", properties=f"DriveLetter = $null; DeviceID = '{FOLDER.format()}'"
)
LETTERED = ENCRYPTABLE.replace("DriveLetter = $null", "DriveLetter = 'E:'")
METHOD = """
    [pscustomobject]@{{ ReturnValue = [uint32]{code}; SuspendCount = {count}; PlatformValidationProfile = {pcrs} }}
"""
COUNTS = METHOD.format(code=0, count="[uint32]2", pcrs="[byte[]]@(7, 11)")
REFUSES = METHOD.format(code=2147942450, count="$null", pcrs="$null")  # ERROR_NOT_SUPPORTED
FAILS = METHOD.format(code=2150694912, count="[uint32]0", pcrs="[byte[]]@()")  # FVE_E_LOCKED_VOLUME


@each_row(
    ("volume", "encryptable", "method", "expected"),
    [
        (LOCKED, LETTERED, COUNTS, {"conversion": NOT_EXPOSED, "percentage": NOT_EXPOSED, "suspended": None}),
        (OF_A_FOLDER, ENCRYPTABLE, COUNTS, {"suspended": 2, "pcrs": [7, 11]}),
        # Windows counts restarts for its own volume alone; another one stays open until somebody says so.
        (OF_DATA, LETTERED, REFUSES, {"suspended": 0, "pcrs": NOT_EXPOSED}),
        (OF_WINDOWS, LETTERED, REFUSES, {"suspended": None, "pcrs": NOT_EXPOSED}),
        (OF_WINDOWS, LETTERED, FAILS, {"suspended": NOT_EXPOSED, "pcrs": NOT_EXPOSED}),
        (OF_WINDOWS, LETTERED, COUNTS, {"suspended": 2, "pcrs": [7, 11]}),
    ],
)
def test_of_a_volume_only_what_windows_tells_is_known(
    engine: Scripts, volume: str, encryptable: str, method: str, expected: Mapping[str, Any]
) -> None:
    answers = {"Get-BitLockerVolume": volume, "Get-CimInstance": encryptable, "Invoke-CimMethod": method}
    with instead(engine, answers):
        (state,) = read(engine, "win11-pro-1gpu", "BitLocker")
    assert {each: told(state, each) for each in expected} == expected


# ---- volumes, and hibernation


def test_one_efi_partition_without_a_volume_does_not_hide_the_others(engine: Scripts) -> None:
    whole = read(engine, "win11-pro-1gpu", "EfiVolume")
    with instead(engine, {"Get-Volume": ""}):
        hidden = read(engine, "win11-pro-1gpu", "EfiVolume")
    assert len(hidden) == len(whole) >= 1
    assert all("unknown" in state[name] for state in hidden for name in ("free", "file_system"))


@each_row(
    ("values", "expected"),
    [
        ("HibernateEnabled = 1; HibernateEnabledDefault = 0", True),
        ("HibernateEnabled = 0; HibernateEnabledDefault = 1", False),
        ("HibernateEnabledDefault = 1", True),
        ("HibernateEnabledDefault = 0", False),
        ("", NOT_EXPOSED),
    ],
)
def test_hibernation_is_as_it_was_set_and_else_as_windows_came(engine: Scripts, values: str, expected: Any) -> None:
    registry = f"param($Path, $Name) @{{ HiberbootEnabled = 1; {values} }}[$Name]"
    with instead(engine, {"Read-WinhostRegistry": registry}):
        (state,) = read(engine, "win11-pro-1gpu", "FastStartup")
    assert told(state, "hibernation") == expected
    assert state["fast_startup"] is True


@each_row(("values", "holds"), [("HibernateEnabledDefault = 1", True), ("HibernateEnabled = 0", False)])
def test_the_hibernation_file_holds_a_volume_also_where_nobody_set_it(
    engine: Scripts, values: str, holds: bool
) -> None:
    with instead(engine, {"Read-WinhostRegistry": f"param($Path, $Name) @{{ {values} }}[$Name]"}):
        limits = read(engine, "win11-pro-1gpu", "ResizeLimit")
    assert limits
    assert all(("hibernation-file" in state["holders"]) is holds for state in limits)


# ---- files of VMs

RECORD = """
    @{ name = 'new'; record = [pscustomobject]@{
        complete = $true; retired = $true; path = 'D:\\VMs\\winhost\\new\\file'; image = 'none'; id = ''
        user = 'admin'; address = $null; template = 'AAAA'; host_keys = @()
    } }
"""


@each_row(("resource", "name"), [("VmDisk", "made"), ("VmSeed", "stage")])
def test_a_file_that_may_not_be_seen_is_not_taken_for_one_that_is_gone(
    engine: Scripts, resource: str, name: str
) -> None:
    """Hyper-V administrators see VMs, and not into the folders of their files."""
    denied = "throw [System.UnauthorizedAccessException]::new('Access is denied.')"
    noted = {"Test-WinhostRecords": "$true", "Find-WinhostRecords": RECORD}
    with instead(engine, {**noted, "Test-WinhostFile": denied}):
        (state,) = read(engine, "server2025-role-installed", resource)
    assert "unknown" in state[name]


# ---- the start of Windows

MOMENT = "[datetime]::FromFileTimeUtc({})"


def test_a_start_of_windows_is_the_same_one_after_its_clock_was_set(engine: Scripts) -> None:
    """The time of the start that it tells moves with the clock; when its first program began does not."""
    (found,) = read(engine, "server2025-3gpu", "Boot")
    moved = CIM.format(name="Win32_OperatingSystem", properties=f"LastBootUpTime = {MOMENT.format(134 * 10**15)}")
    with instead(engine, {"Get-CimInstance": moved}):
        (after,) = read(engine, "server2025-3gpu", "Boot")
    assert after["boot_id"] == found["boot_id"]


@each_row(
    ("began", "boot_id"),
    [
        ({300: 133 * 10**15 + 7, 4: 133 * 10**15}, 133 * 10**15),
        ({}, 134 * 10**15),
        ({4: None}, 134 * 10**15),
        ({4: None, 300: 133 * 10**15}, 134 * 10**15),
    ],
)
def test_of_several_session_managers_the_first_began_with_windows(
    engine: Scripts, began: dict[int, int | None], boot_id: int
) -> None:
    """Each session has one while it begins, a child of the first. Where that does not tell, the time of the start has
    to do: another's would change without a restart.
    """
    told = ", ".join(
        f"@{{ ParentProcessId = {parent}; CreationDate = {MOMENT.format(each) if each else '$null'} }}"
        for parent, each in began.items()
    )
    body = f"""
        param($ClassName, $Namespace, $Filter, $ErrorAction)
        if ($ClassName -eq 'Win32_Process') {{
            return @({told})
        }}
        [pscustomobject]@{{ LastBootUpTime = {MOMENT.format(134 * 10**15)} }}
    """
    with instead(engine, {"Get-CimInstance": body}):
        (state,) = read(engine, "server2025-3gpu", "Boot")
    assert state["boot_id"] == str(boot_id)


# ---- firewall


def test_a_rule_that_somebody_disabled_opens_nothing(engine: Scripts) -> None:
    """Those who may come to the others are told without it, too."""
    rules = "".join(
        f"[pscustomobject]@{{ Name = 'winhost-vm-port-{port}'; {said}RemoteAddresses = @('10.0.{port}.0/24') }}; "
        for port, said in {80: "Enabled = 'True'; ", 81: "Enabled = 'False'; ", 82: "", 83: "Enabled = 2; "}.items()
    )
    with instead(engine, {"Get-NetFirewallHyperVRule": rules}):
        (state,) = read(engine, "win11-pro-1gpu", "HyperVFirewall")
    assert (state["ports"], state["allowed"]) == ([80, 82], ["10.0.80.0/24", "10.0.82.0/24"])


def test_whom_the_others_let_in_is_no_matter_of_a_rule_that_somebody_disabled(engine: Scripts) -> None:
    """Neither does it go, nor does it open again, unless its port is asked for."""
    rules = "".join(
        f"[pscustomobject]@{{ Name = 'winhost-vm-port-{port}'; Enabled = '{enabled}'; RemoteAddresses = @('Any') }}; "
        for port, enabled in {80: True, 81: False}.items()
    )
    answers = {
        "Get-NetFirewallHyperVRule": rules,
        "Remove-NetFirewallHyperVRule": f'param({PARAMETERS}) $script:LabChanged += "-$($InputObject.Name)"',
        "New-NetFirewallHyperVRule": f'param({PARAMETERS}) $script:LabChanged += "+$Name"',
    }
    wanted = {"allowed = @('10.0.0.0/8')": [80], "ports = @(80)": [80, 81], "ports = @(81)": [80, 81]}
    for desired, gone in wanted.items():
        made = 81 if "81" in desired else 80
        with instead(engine, answers):
            engine.run(
                f"$script:LabChanged = @(); Set-WinhostHyperVFirewall $null ([pscustomobject]@{{ {desired} }}) $null"
            )
            told = engine.run("$script:LabChanged")
        assert told == [*(f"-winhost-vm-port-{port}" for port in gone), f"+winhost-vm-port-{made}"]


@each_row(("enabled", "allowed"), [("'True'", ["10.0.0.0/8"]), ("'False'", []), ("2", [])])
def test_a_forward_whose_rule_somebody_disabled_is_shut(engine: Scripts, enabled: str, allowed: list[str]) -> None:
    rule = f"[pscustomobject]@{{ Name = 'winhost-port-80'; Enabled = {enabled} }}"
    found = {
        "Get-NetFirewallRule": rule,
        "Get-NetFirewallAddressFilter": "@{ RemoteAddress = @('10.0.0.0/255.0.0.0') }",
    }
    with instead(engine, found):
        (state,) = read(engine, "win11-pro-1gpu", "PortForward")
    assert state["allowed"] == allowed


# ---- features of a client


def test_a_client_with_the_tools_alone_has_no_role(engine: Scripts) -> None:
    features = "".join(
        f"[pscustomobject]@{{ FeatureName = 'Microsoft-Hyper-V{name}'; State = '{state}' }}; "
        for name, state in {"-All": "Enabled", "": "Disabled", "-Management-PowerShell": "Enabled"}.items()
    )
    with instead(engine, {"Get-WindowsOptionalFeature": features}):
        (state,) = read(engine, "win11-pro-1gpu", "HyperVRole")
    assert (state["role"], state["tools"]) == ("available", "installed")
