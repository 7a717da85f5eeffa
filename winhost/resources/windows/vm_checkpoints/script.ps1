# key {vm: guid}   state {kind: disabled | production | production-only | standard, automatic: bool}
function Get-WinhostVmCheckpoints {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        $automatic = $false
        # Windows Server 2016 has neither automatic checkpoints nor this property.
        if ($null -ne $vm.PSObject.Properties['AutomaticCheckpointsEnabled']) {
            $automatic = [bool]$vm.AutomaticCheckpointsEnabled
        }
        $state = @{ kind = ConvertTo-WinhostKebab "$($vm.CheckpointType)"; automatic = $automatic }
        @{ key = @{ vm = "$($vm.Id)" }; state = $state }
    }
}

function Set-WinhostVmCheckpoints {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('kind', 'automatic')
    Assert-WinhostBoolean $Desired @('automatic')
    $vm = Find-WinhostVm $Key
    if (Test-WinhostDesired $Desired 'kind') {
        $kind = ConvertFrom-WinhostKebab $Desired.kind @('Disabled', 'Production', 'ProductionOnly', 'Standard')
        Set-VM -VM $vm -CheckpointType $kind -ErrorAction Stop
    }
    if (Test-WinhostDesired $Desired 'automatic') {
        Set-VM -VM $vm -AutomaticCheckpointsEnabled $Desired.automatic -ErrorAction Stop
    }
}
