# key {location: path, device: ids}   state {assignment: host-enabled | host-disabled | dismounted | assigned:<vm>, present: bool}; how {accept: force-dismount}
function Get-WinhostAssignableDevice {
    $claims = @{}
    foreach ($claim in @(Find-WinhostAssignments)) {
        $claims[$claim.location] = $claim
    }
    $shown = @()
    foreach ($function in @(Find-WinhostPciFunctions)) {
        $assignment = Read-WinhostHostAssignment $function
        if ($claims.ContainsKey($function.key.location)) {
            $assignment = $claims[$function.key.location].assignment
        }
        $shown += $function.key.location
        @{ key = $function.key; state = @{ assignment = $assignment; present = $true } }
    }
    # Other devices that are assigned to VMs: those that are no GPU, or cannot be recognized as one, and missing ones,
    # which keep a VM from starting and can be unassigned.
    foreach ($claim in $claims.Values) {
        if ($shown -notcontains $claim.location) {
            Assert-WinhostPart 'Test-WinhostPciPresent'
            $state = @{ assignment = $claim.assignment; present = Test-WinhostPciPresent $claim }
            @{ key = @{ location = $claim.location; device = $claim.device }; state = $state }
        }
    }
}

function Find-WinhostAssignments {
    Read-WinhostCached 'assignments' {
        foreach ($vm in @(Find-WinhostVms $null)) {
            foreach ($assigned in @(Get-VMAssignableDevice -VM $vm -ErrorAction Stop)) {
                @{
                    assignment = "assigned:$($vm.Id)"
                    location = "$($assigned.LocationPath)".ToUpperInvariant()
                    device = ConvertTo-WinhostPciIds "$($assigned.InstanceID)"
                    assigned = $assigned
                    vm = $vm
                }
            }
        }
    }
}

function Read-WinhostHostAssignment {
    param($Function)
    if ($Function.instance -like 'PCIP\*') {
        return 'dismounted'
    }
    # 22: disabled.
    if ([int]$Function.entity.ConfigManagerErrorCode -eq 22) {
        return 'host-disabled'
    }
    'host-enabled'
}

function Set-WinhostAssignableDevice {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('assignment')
    $assignment = "$($Desired.assignment)"
    $vm = $null
    if ($assignment -cmatch '^assigned:([0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\z') {
        $vm = Find-WinhostVm ([PSCustomObject]@{ vm = $Matches[1] })
    }
    elseif (@('host-enabled', 'host-disabled', 'dismounted') -notcontains $assignment) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$assignment is no assignment."
    }
    $removed = Remove-WinhostAssignments $Key $assignment
    if ($assignment -like 'host-*') {
        Move-WinhostToHost $Key $assignment
        return
    }
    Move-WinhostFromHost $Key $assignment $How
    if ($null -ne $vm -and -not $removed.held) {
        Add-WinhostAssignment $Key $vm $removed.from
    }
}

function Add-WinhostAssignment {
    param($Key, $Vm, $From)
    # Only this cmdlet shows whether the VM can have the device. If it fails, the device is assigned to its former VMs.
    $function = Find-WinhostPciFunction $Key
    try {
        Add-VMAssignableDevice -VM $Vm -LocationPath $function.path -Confirm:$false -ErrorAction Stop
    }
    catch {
        foreach ($former in $From) {
            Invoke-WinhostBestEffort "$($Key.location) could not be given back to the VM that had it" {
                Add-VMAssignableDevice -VM $former -LocationPath $function.path -Confirm:$false -ErrorAction Stop
            }
        }
        throw
    }
}

function Find-WinhostPciFunction {
    param($Key)
    foreach ($function in @(Find-WinhostPciFunctions)) {
        if ($function.key.location -eq $Key.location -and $function.key.device -eq $Key.device) {
            return $function
        }
    }
    Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no $($Key.device) at $($Key.location)."
}

function Remove-WinhostAssignments {
    param($Key, [string]$Assignment)
    # Unassigns the device from other VMs. Returns these (from), and whether the desired VM has the device already (held).
    $removed = @{ held = $false; from = @() }
    foreach ($claim in @(Find-WinhostAssignments)) {
        if ($claim.location -ne $Key.location) {
            continue
        }
        if ($claim.assignment -eq $Assignment) {
            $removed.held = $true
        }
        else {
            Remove-VMAssignableDevice -VMAssignableDevice $claim.assigned -Confirm:$false -ErrorAction Stop
            $removed.from += $claim.vm
        }
    }
    $script:WinhostCache = @{}
    $removed
}

function Move-WinhostToHost {
    param($Key, [string]$Assignment)
    $function = Find-WinhostPciFunction $Key
    if ((Read-WinhostHostAssignment $function) -eq 'dismounted') {
        Mount-VMHostAssignableDevice -LocationPath $function.path -Confirm:$false -ErrorAction Stop
        $function = Wait-WinhostMountedDevice $Key
    }
    if ((Read-WinhostHostAssignment $function) -eq $Assignment) {
        return
    }
    if ($Assignment -eq 'host-enabled') {
        Enable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
    else {
        Disable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
}

function Wait-WinhostMountedDevice {
    param($Key)
    # Windows lists the device under another instance id, some time after the cmdlet has returned.
    for ($second = 0; $second -lt 30; $second++) {
        $script:WinhostCache = @{}
        foreach ($function in @(Find-WinhostPciFunctions)) {
            if ($function.key.location -eq $Key.location -and (Read-WinhostHostAssignment $function) -ne 'dismounted') {
                return $function
            }
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    }
    Stop-Winhost 'Winhost.NotRestored' 'DeviceError' "$($Key.location) was mounted, but Windows does not list it."
}

function Move-WinhostFromHost {
    param($Key, [string]$Assignment, $How)
    if ($Assignment -eq 'dismounted' -and -not (Test-WinhostPciPresent $Key)) {
        return
    }
    $function = Find-WinhostPciFunction $Key
    $now = Read-WinhostHostAssignment $function
    if ($now -eq 'dismounted') {
        return
    }
    if ($now -eq 'host-enabled') {
        Disable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
    if (Test-WinhostConsent $How 'force-dismount') {
        # Skips the check for access control services and for a mitigation driver: for trusted VMs only.
        Dismount-VMHostAssignableDevice -LocationPath $function.path -Force -Confirm:$false -ErrorAction Stop
    }
    else {
        Dismount-VMHostAssignableDevice -LocationPath $function.path -Confirm:$false -ErrorAction Stop
    }
    $script:WinhostCache = @{}
}

function Test-WinhostPciPresent {
    param($Device)
    foreach ($function in @(Find-WinhostAllPci)) {
        if ($function.key.location -eq $Device.location) {
            return $true
        }
    }
    $false
}
