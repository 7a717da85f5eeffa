# key {name: text}   state {made: bool or null, ours: bool, id: guid or null, cpus: int or null, memory: bytes or null, switch: guid or null, vlan: int or null, mac: text or null, secure_boot: bool or null}; how {accept: data}
# The template of Microsoft's UEFI certificate authority, by id, because some hosts do not know its name.
$script:WinhostSecureBootTemplate = '272e7447-90a4-4563-a4b9-8e4ab00526ce'

function Get-WinhostOwnVm {
    param($Key)
    $null = @(Find-WinhostVms $null)
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostOwnVms'
        Read-WinhostOwnVms $Key
    }
}

function Read-WinhostOwnVms {
    param($Key)
    foreach ($entry in @(Find-WinhostRecords 'vm' $Key)) {
        $state = New-WinhostAbsentVm
        $state.made = $null
        $vm = Find-WinhostRecordedVm $entry.name $entry.record
        if ($null -ne $vm) {
            $state.id = "$($vm.Id)"
            $state.ours = Test-WinhostVmMark $vm $entry.record
            if ($state.ours -and $entry.record.complete) {
                $state.made = $true
                Read-WinhostVmSettings $vm $state
            }
        }
        @{ key = @{ name = $entry.name }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostAbsentVm }
    }
}

function New-WinhostAbsentVm {
    $state = @{ made = $false; ours = $false; id = $null; cpus = $null; memory = $null; switch = $null; vlan = $null; mac = $null; secure_boot = $null }
    $state
}

function Read-WinhostVmSettings {
    param($Vm, $State)
    $State.cpus = Read-WinhostValue { [int](Get-VMProcessor -VM $Vm -ErrorAction Stop).Count }
    $State.memory = [long]$Vm.MemoryStartup
    $State.secure_boot = Read-WinhostValue { Test-WinhostLinuxBoot $Vm }
    foreach ($adapter in @(Get-VMNetworkAdapter -VM $Vm -ErrorAction Stop)) {
        if ($null -ne $adapter.SwitchId -and "$($adapter.SwitchId)" -cne "$([guid]::Empty)") {
            $State.switch = "$($adapter.SwitchId)"
        }
        $State.mac = "$($adapter.MacAddress)"
        $vlan = Get-VMNetworkAdapterVlan -VMNetworkAdapter $adapter -ErrorAction Stop
        if ("$($vlan.OperationMode)" -ceq 'Access') {
            $State.vlan = [int]$vlan.AccessVlanId
        }
        return
    }
}

function Test-WinhostLinuxBoot {
    param($Vm)
    $firmware = Get-VMFirmware -VM $Vm -ErrorAction Stop
    "$($firmware.SecureBoot)" -ceq 'On' -and "$($firmware.SecureBootTemplateId)" -eq $script:WinhostSecureBootTemplate
}

function Set-WinhostOwnVm {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'cpus', 'memory', 'switch', 'vlan', 'mac', 'secure_boot')
    Assert-WinhostVmName $Key
    Assert-WinhostVmDesired $Desired
    $name = "$($Key.name)"
    $record = Find-WinhostRecord 'vm' $name
    if (-not (Test-WinhostDesired $Desired 'made')) {
        Write-WinhostVmSettings (Find-WinhostOwnVm $name $record) $Desired
        return
    }
    if (-not $Desired.made) {
        Remove-WinhostOwnVm $name $record $How
        return
    }
    Assert-WinhostRequired $Desired @('cpus', 'memory', 'switch', 'mac', 'secure_boot') 'A VM is made with all of these.'
    Add-WinhostOwnVm $name $record $Desired
}

function Assert-WinhostVmDesired {
    param($Desired)
    Assert-WinhostBoolean $Desired @('made')
    if ($null -ne (Read-WinhostField $Desired 'secure_boot')) {
        Assert-WinhostBoolean $Desired @('secure_boot')
    }
    Assert-WinhostInteger $Desired 'cpus' 1 2048
    Assert-WinhostInteger $Desired 'memory' 2097152 1099511627776000
    Assert-WinhostInteger $Desired 'vlan' 1 4094
    Assert-WinhostPattern $Desired 'switch' $script:WinhostGuidForm 'a GUID'
    Assert-WinhostPattern $Desired 'mac' '^[0-9A-F]{12}\z' 'a MAC address of 12 hexadecimal digits'
}

# ---- finding winhost's VMs

function Find-WinhostRecordedVm {
    param([string]$Name, $Record)
    # Finds the VM by the recorded id; if creating it was interrupted before that was written, by its name and its folder,
    # in which only winhost creates VMs.
    $folder = "$(Read-WinhostVmStore)\$Name"
    foreach ($vm in @(Find-WinhostVms $null)) {
        if ($null -ne $Record.id) {
            if ("$($vm.Id)" -eq $Record.id) {
                return $vm
            }
        }
        elseif ((Test-WinhostText "$($vm.Name)" $Name 'OrdinalIgnoreCase') -and (Test-WinhostText "$($vm.Path)".TrimEnd('\') $folder 'OrdinalIgnoreCase')) {
            return $vm
        }
    }
}

function Test-WinhostVmMark {
    param($Vm, $Record)
    # Until the notes are marked, id or folder are sufficient. From then on, the notes must contain the mark as well.
    $null -eq $Record.id -or -not $Record.marked -or "$($Vm.Notes)".Contains($Record.token)
}

function Find-WinhostOwnVm {
    param([string]$Name, $Record)
    if ($null -ne $Record) {
        $vm = Find-WinhostRecordedVm $Name $Record
        if ($null -ne $vm) {
            if (Test-WinhostVmMark $vm $Record) {
                return $vm
            }
            Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "The notes of the VM $Name no longer have the mark of winhost, which leaves it alone."
        }
    }
    Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "winhost made no VM $Name."
}

# ---- creating and removing

function Add-WinhostOwnVm {
    param([string]$Name, $Record, $Desired)
    $disk = Find-WinhostRecord 'disk' $Name
    if ($null -eq $disk -or -not $disk.complete) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "There is no disk for the VM ${Name}: make that first."
    }
    $null = Find-WinhostVmSwitch $Desired.switch
    $vm = $null
    if ($null -ne $Record) {
        $vm = Find-WinhostRecordedVm $Name $Record
    }
    if ($null -ne $vm -and -not (Test-WinhostVmMark $vm $Record)) {
        $vm = Find-WinhostOwnVm $Name $Record
    }
    Assert-WinhostUniqueVm $Name $vm $Desired.mac
    if ($null -eq $vm) {
        # The record is written first, so that a VM in this folder is known to be winhost's as soon as it exists.
        $Record = @{ token = "$([guid]::NewGuid())"; id = $null; marked = $false; complete = $false }
        Write-WinhostRecord 'vm' $Name $Record
        $vm = New-VM -Name $Name -Generation 2 -MemoryStartupBytes ([long]$Desired.memory) -NoVHD -Path (Read-WinhostVmStore) -ErrorAction Stop
    }
    $mine = @{ token = $Record.token; id = "$($vm.Id)"; marked = $false; complete = $false }
    Write-WinhostRecord 'vm' $Name $mine
    Set-VM -VM $vm -Notes "Made by winhost, which knows it by $($mine.token)." -ErrorAction Stop
    $mine.marked = $true
    Write-WinhostRecord 'vm' $Name $mine
    Write-WinhostFixedVmSettings $vm
    Write-WinhostVmSettings $vm $Desired
    Add-WinhostVmBootDisk $vm $disk.path
    $mine.complete = $true
    Write-WinhostRecord 'vm' $Name $mine
}

function Assert-WinhostUniqueVm {
    param([string]$Name, $Vm, [string]$Mac)
    # Requires the name and the MAC address to be unused. A port of the host has no VMId, and counts as another adapter.
    $id = $null
    if ($null -ne $Vm) {
        $id = "$($Vm.Id)"
    }
    foreach ($other in @(Find-WinhostVms $null)) {
        if ("$($other.Id)" -cne $id -and (Test-WinhostText "$($other.Name)" $Name 'OrdinalIgnoreCase')) {
            Stop-Winhost 'Winhost.NameTaken' 'ResourceExists' "There is a VM $Name already, which winhost did not make."
        }
    }
    foreach ($adapter in @(Get-VMNetworkAdapter -All -ErrorAction Stop)) {
        if ("$($adapter.VMId)" -cne $id -and "$($adapter.MacAddress)" -eq $Mac) {
            Stop-Winhost 'Winhost.AddressTaken' 'ResourceExists' "Another network adapter on this host has the MAC address $Mac."
        }
    }
}

function Find-WinhostVmSwitch {
    param([string]$Id)
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        if ("$($switch.Id)" -eq $Id) {
            return $switch
        }
    }
    Stop-Winhost 'Winhost.NoSwitch' 'ObjectNotFound' "There is no switch $Id."
}

function Write-WinhostFixedVmSettings {
    param($Vm)
    # Writes settings that are not configurable: a VM with an assigned device can neither be saved nor checkpointed.
    Set-VM -VM $Vm -CheckpointType Disabled -AutomaticStopAction TurnOff -ErrorAction Stop
    # The delay gives the GPU drivers of the host time to start.
    Set-VM -VM $Vm -AutomaticStartAction StartIfRunning -AutomaticStartDelay 60 -ErrorAction Stop
    if ($null -ne $Vm.PSObject.Properties['AutomaticCheckpointsEnabled']) {
        Set-VM -VM $Vm -AutomaticCheckpointsEnabled $false -ErrorAction Stop
    }
    $pipe = "\\.\pipe\$($Vm.Id)"
    Set-VMComPort -VM $Vm -Number 1 -Path $pipe -ErrorAction Stop
    # Without the serial port there is no boot log of a guest that does not start.
    if ("$((Get-VMComPort -VM $Vm -Number 1 -ErrorAction Stop).Path)" -ne $pipe) {
        Stop-Winhost 'Winhost.NoBootLog' 'InvalidResult' "The first serial port of the VM did not become $pipe."
    }
}

function Write-WinhostVmSettings {
    param($Vm, $Desired)
    if ($null -ne (Read-WinhostField $Desired 'cpus')) {
        Set-VMProcessor -VM $Vm -Count $Desired.cpus -ErrorAction Stop
    }
    if ($null -ne (Read-WinhostField $Desired 'memory')) {
        Set-VMMemory -VM $Vm -DynamicMemoryEnabled $false -StartupBytes $Desired.memory -ErrorAction Stop
    }
    if ($null -ne (Read-WinhostField $Desired 'secure_boot')) {
        Write-WinhostSecureBoot $Vm $Desired.secure_boot
    }
    foreach ($adapter in @(Get-VMNetworkAdapter -VM $Vm -ErrorAction Stop)) {
        Write-WinhostVmAdapter $adapter $Desired
    }
}

function Write-WinhostVmAdapter {
    param($Adapter, $Desired)
    if ($null -ne (Read-WinhostField $Desired 'mac')) {
        Set-VMNetworkAdapter -VMNetworkAdapter $Adapter -StaticMacAddress $Desired.mac -ErrorAction Stop
    }
    if ($null -ne (Read-WinhostField $Desired 'vlan')) {
        Set-VMNetworkAdapterVlan -VMNetworkAdapter $Adapter -Access -VlanId $Desired.vlan -ErrorAction Stop
    }
    elseif (Test-WinhostDesired $Desired 'vlan') {
        Set-VMNetworkAdapterVlan -VMNetworkAdapter $Adapter -Untagged -ErrorAction Stop
    }
    # The switch is connected last, so that the adapter is never on it without these settings.
    if ($null -ne (Read-WinhostField $Desired 'switch')) {
        Connect-VMNetworkAdapter -VMNetworkAdapter $Adapter -VMSwitch (Find-WinhostVmSwitch $Desired.switch) -ErrorAction Stop
    }
}

function Write-WinhostSecureBoot {
    param($Vm, [bool]$On)
    if (-not $On) {
        Set-VMFirmware -VM $Vm -EnableSecureBoot Off -ErrorAction Stop
        return
    }
    Set-VMFirmware -VM $Vm -EnableSecureBoot On -SecureBootTemplateId $script:WinhostSecureBootTemplate -ErrorAction Stop
    if (-not (Test-WinhostLinuxBoot $Vm)) {
        $why = 'This host did not take the template for Linux. Secure Boot is not switched off for that: say so, and plan with new_vm.secure_boot=false.'
        Stop-Winhost 'Winhost.TemplateRefused' 'InvalidResult' $why
    }
}

function Add-WinhostVmBootDisk {
    param($Vm, [string]$Path)
    $drives = @(Get-VMHardDiskDrive -VM $Vm -ErrorAction Stop)
    if ($drives.Count -eq 0) {
        # Attaching the disk gives the VM access to its file.
        Add-VMHardDiskDrive -VM $Vm -Path $Path -ErrorAction Stop
        $drives = @(Get-VMHardDiskDrive -VM $Vm -ErrorAction Stop)
    }
    Set-VMFirmware -VM $Vm -FirstBootDevice $drives[0] -ErrorAction Stop
}

function Remove-WinhostOwnVm {
    param([string]$Name, $Record, $How)
    if ($null -eq $Record) {
        return
    }
    Assert-WinhostDataConsent $How 'A VM would go for good'
    $vm = Find-WinhostRecordedVm $Name $Record
    if ($null -ne $vm) {
        $vm = Find-WinhostOwnVm $Name $Record
        if ("$($vm.State)" -cne 'Off') {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The VM is $($vm.State): shut it down first."
        }
        if (@(Get-VMAssignableDevice -VM $vm -ErrorAction Stop).Count -gt 0) {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'A device is assigned to the VM: take it back first, or the host has it no more.'
        }
        # The disk stays, because it is a separate resource. Without -Force the cmdlet prompts regardless of -Confirm.
        Remove-VM -VM $vm -Force -ErrorAction Stop
    }
    Write-WinhostRecord 'vm' $Name $null
}
