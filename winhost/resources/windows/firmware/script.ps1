# key {}   state {manufacturer, model, bios_version: text, hypervisor_present, virtualization_enabled, second_level_translation: bool, security_properties: [int], address_width: int, serial: text or null}
function Get-WinhostFirmware {
    $machine = Get-CimInstance -ClassName Win32_ComputerSystem -ErrorAction Stop
    $state = @{
        manufacturer = "$($machine.Manufacturer)"
        model = "$($machine.Model)"
        bios_version = Read-WinhostValue { "$((Read-WinhostBios).SMBIOSBIOSVersion)" }
        hypervisor_present = [bool]$machine.HypervisorPresent
        virtualization_enabled = Read-WinhostValue { [bool](Assert-WinhostValue (Read-WinhostFirstProcessor).VirtualizationFirmwareEnabled) }
        second_level_translation = Read-WinhostValue { [bool](Assert-WinhostValue (Read-WinhostFirstProcessor).SecondLevelAddressTranslationExtensions) }
        security_properties = Read-WinhostList {
            $guard = Get-CimInstance -Namespace 'root\Microsoft\Windows\DeviceGuard' -ClassName Win32_DeviceGuard -ErrorAction Stop
            foreach ($property in @(Assert-WinhostValue $guard.AvailableSecurityProperties)) {
                [int]$property
            }
        }
        # CPUID has this value, but no Windows interface exposes it.
        address_width = Read-WinhostValue { Assert-WinhostValue $null }
        serial = Read-WinhostValue {
            $serial = "$((Read-WinhostBios).SerialNumber)".Trim()
            if ($serial -ne '') {
                $serial
            }
        }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostBios {
    Read-WinhostCached 'bios' { Get-CimInstance -ClassName Win32_BIOS -ErrorAction Stop }
}

function Read-WinhostFirstProcessor {
    @(Find-WinhostProcessors)[0]
}
