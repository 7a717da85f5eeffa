# key {vm: guid}   state {stop: turn-off | save | shut-down, start: nothing | start-if-running | start}
function Get-WinhostVmActions {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        $state = @{
            stop = ConvertTo-WinhostKebab "$($vm.AutomaticStopAction)"
            start = ConvertTo-WinhostKebab "$($vm.AutomaticStartAction)"
        }
        @{ key = @{ vm = "$($vm.Id)" }; state = $state }
    }
}

function Set-WinhostVmActions {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('stop', 'start')
    $vm = Find-WinhostVm $Key
    if (Test-WinhostDesired $Desired 'stop') {
        $stop = ConvertFrom-WinhostKebab $Desired.stop @('TurnOff', 'Save', 'ShutDown')
        Set-VM -VM $vm -AutomaticStopAction $stop -ErrorAction Stop
    }
    if (Test-WinhostDesired $Desired 'start') {
        $start = ConvertFrom-WinhostKebab $Desired.start @('Nothing', 'StartIfRunning', 'Start')
        Set-VM -VM $vm -AutomaticStartAction $start -ErrorAction Stop
    }
}
