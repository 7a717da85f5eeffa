# key {vm: guid}   state {name, state: text, generation: int, version: text, nested, clustered: bool, checkpoints: int, secure_boot: bool, secure_boot_template: text or null, devices: [location path], partitions: int}
function Get-WinhostVm {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        $state = @{
            name = "$($vm.Name)"
            state = ConvertTo-WinhostKebab "$($vm.State)"
            generation = [int]$vm.Generation
            version = "$($vm.Version)"
            nested = Read-WinhostValue { [bool](Get-VMProcessor -VM $vm -ErrorAction Stop).ExposeVirtualizationExtensions }
            clustered = [bool]$vm.IsClustered
            checkpoints = Read-WinhostValue { @(Get-VMSnapshot -VM $vm -ErrorAction Stop).Count }
            secure_boot = Read-WinhostValue { (Read-WinhostVmFirmware $vm 'SecureBoot') -eq 'On' }
            secure_boot_template = Read-WinhostValue { Read-WinhostVmFirmware $vm 'SecureBootTemplate' }
            devices = Read-WinhostList {
                foreach ($device in @(Get-VMAssignableDevice -VM $vm -ErrorAction Stop)) {
                    "$($device.LocationPath)".ToUpperInvariant()
                }
            }
            partitions = Read-WinhostValue {
                if (-not (Test-WinhostCommand 'Get-VMGpuPartitionAdapter')) {
                    # The number is unknown. 0 would mean that there are none.
                    $null = Assert-WinhostValue $null
                }
                @(Get-VMGpuPartitionAdapter -VM $vm -ErrorAction Stop).Count
            }
        }
        @{ key = @{ vm = "$($vm.Id)" }; state = $state }
    }
}

function Read-WinhostVmFirmware {
    param($Vm, [string]$Property)
    # Get-VMFirmware fails for generation 1, which has a BIOS.
    if ($Vm.Generation -ge 2) {
        "$((Get-VMFirmware -VM $Vm -ErrorAction Stop).$Property)"
    }
}
