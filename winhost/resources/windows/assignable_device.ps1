# key {location: path, device: ids}   state {place: host-enabled | host-disabled | dismounted | assigned:<vm>}; how {accept: force-dismount}
function Get-WinhostAssignableDevice {
    $claims = @{}
    foreach ($assignment in @(Find-WinhostAssignments)) {
        $claims[$assignment.location] = $assignment
    }
    foreach ($function in @(Find-WinhostPciFunctions)) {
        $place = Read-WinhostHostPlace $function
        if ($claims.ContainsKey($function.key.location)) {
            $place = $claims[$function.key.location].place
        }
        @{ key = $function.key; state = @{ place = $place } }
    }
    # What a VM still claims although no such device is there: it keeps the VM from starting, and can be taken away.
    foreach ($function in @(Find-WinhostPciAll)) {
        $claims.Remove($function.key.location)
    }
    foreach ($stale in $claims.Values) {
        @{ key = @{ location = $stale.location; device = $stale.device }; state = @{ place = $stale.place } }
    }
}

function Find-WinhostAssignments {
    Read-WinhostOnce 'assignments' {
        foreach ($vm in @(Find-WinhostVms $null)) {
            foreach ($assigned in @(Get-VMAssignableDevice -VM $vm -ErrorAction Stop)) {
                @{
                    place = "assigned:$($vm.Id)"
                    location = "$($assigned.LocationPath)".ToUpperInvariant()
                    device = ConvertTo-WinhostPciIds "$($assigned.InstanceID)"
                    assigned = $assigned
                }
            }
        }
    }
}

function Read-WinhostHostPlace {
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
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('place')
    $place = "$($Want.place)"
    $vm = $null
    if ($place -like 'assigned:*') {
        $vm = Find-WinhostVm ([PSCustomObject]@{ vm = $place.Substring(9) })
    }
    elseif (@('host-enabled', 'host-disabled', 'dismounted') -notcontains $place) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$place is no place."
    }
    $held = Remove-WinhostAssignments $Key $place
    if ($place -like 'host-*') {
        Move-WinhostToHost $Key $place
        return
    }
    Move-WinhostFromHost $Key $place $How
    if ($null -ne $vm -and -not $held) {
        $function = Find-WinhostPciFunction $Key
        Add-VMAssignableDevice -VM $vm -LocationPath $function.path -Confirm:$false -ErrorAction Stop
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
    param($Key, [string]$Place)
    # True when the VM that is to have it has it already.
    $held = $false
    foreach ($assignment in @(Find-WinhostAssignments)) {
        if ($assignment.location -eq $Key.location) {
            if ($assignment.place -eq $Place) {
                $held = $true
            }
            else {
                Remove-VMAssignableDevice -VMAssignableDevice $assignment.assigned -Confirm:$false -ErrorAction Stop
            }
        }
    }
    $script:WinhostOnce = @{}
    $held
}

function Move-WinhostToHost {
    param($Key, [string]$Place)
    $function = Find-WinhostPciFunction $Key
    if ((Read-WinhostHostPlace $function) -eq 'dismounted') {
        Mount-VMHostAssignableDevice -LocationPath $function.path -Confirm:$false -ErrorAction Stop
        $function = Wait-WinhostMounted $Key
    }
    $now = Read-WinhostHostPlace $function
    if ($place -eq 'host-enabled' -and $now -ne $place) {
        Enable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
    if ($place -eq 'host-disabled' -and $now -ne $place) {
        Disable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
}

function Wait-WinhostMounted {
    param($Key)
    # Windows meets the device anew, under another instance id, some moments after the cmdlet returned.
    for ($second = 0; $second -lt 30; $second++) {
        $script:WinhostOnce = @{}
        foreach ($function in @(Find-WinhostPciFunctions)) {
            if ($function.key.location -eq $Key.location -and (Read-WinhostHostPlace $function) -ne 'dismounted') {
                return $function
            }
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    }
    Stop-Winhost 'Winhost.NotRestored' 'DeviceError' "$($Key.location) was mounted, but Windows does not see it."
}

function Move-WinhostFromHost {
    param($Key, [string]$Place, $How)
    if ($Place -eq 'dismounted' -and -not (Test-WinhostPciPresent $Key)) {
        return
    }
    $function = Find-WinhostPciFunction $Key
    $now = Read-WinhostHostPlace $function
    if ($now -eq 'dismounted') {
        return
    }
    if ($now -eq 'host-enabled') {
        Disable-PnpDevice -InstanceId $function.instance -Confirm:$false -ErrorAction Stop
    }
    if (Test-WinhostAccepted $How 'force-dismount') {
        # Without the check for access control services and without a mitigation driver: for trusted VMs only.
        Dismount-VMHostAssignableDevice -LocationPath $function.path -Force -Confirm:$false -ErrorAction Stop
    }
    else {
        Dismount-VMHostAssignableDevice -LocationPath $function.path -Confirm:$false -ErrorAction Stop
    }
    $script:WinhostOnce = @{}
}

function Test-WinhostPciPresent {
    param($Key)
    foreach ($function in @(Find-WinhostPciAll)) {
        if ($function.key.location -eq $Key.location) {
            return $true
        }
    }
    $false
}
