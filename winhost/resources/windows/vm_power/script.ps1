# key {vm: guid}   state {state: off | running | saved | paused}; how {accept: vm-turn-off, within: seconds}
function Get-WinhostVmPower {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        @{ key = @{ vm = "$($vm.Id)" }; state = @{ state = ConvertTo-WinhostWord "$($vm.State)" } }
    }
}

function Set-WinhostVmPower {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('state')
    $vm = Find-WinhostVm $Key
    switch (ConvertFrom-WinhostWord $Desired.state @('Off', 'Running', 'Saved', 'Paused')) {
        'Off' {
            Stop-WinhostVm $vm $How
        }
        'Running' {
            Start-WinhostVm $vm
        }
        'Saved' {
            Save-VM -VM $vm -ErrorAction Stop
        }
        'Paused' {
            Suspend-VM -VM $vm -ErrorAction Stop
        }
    }
}

function Start-WinhostVm {
    param($Vm)
    if ("$($Vm.State)" -eq 'Paused') {
        Resume-VM -VM $Vm -ErrorAction Stop
        return
    }
    Start-VM -VM $Vm -ErrorAction Stop
}

function Stop-WinhostVm {
    param($Vm, $How)
    # Saved and paused memory is data that only its owner may throw away.
    if (@('Saved', 'Paused') -contains "$($Vm.State)") {
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' "The VM is $($Vm.State): start it, and shut it down from inside."
    }
    $within = Read-WinhostField $How 'within'
    if ($null -eq $within) {
        $within = 300
    }
    $job = Stop-VM -VM $Vm -AsJob -Confirm:$false -ErrorAction Stop
    try {
        Wait-WinhostGuest $Vm $job $within $How
    }
    finally {
        # Or each shutdown would leave one in the session, with which it goes; one that still waits for its guest takes
        # more than asking.
        Invoke-WinhostAside 'The job of the shutdown could not be removed' { Remove-Job -Job $job -Force -ErrorAction Stop }
    }
}

function Wait-WinhostGuest {
    param($Vm, $Job, $Within, $How)
    $end = (Read-WinhostClock) + $Within
    do {
        Start-Sleep -Seconds 1 -ErrorAction Stop
        $now = Get-VM -Id $Vm.Id -ErrorAction Stop
        $waiting = "$($now.State)" -ne 'Off' -and "$($Job.State)" -ne 'Failed'
    } while ($waiting -and (Read-WinhostClock) -lt $end)
    if ("$($now.State)" -eq 'Off') {
        return
    }
    if (-not (Test-WinhostAccepted $How 'vm-turn-off')) {
        $why = "The guest did not shut down within $Within s. $($Job.JobStateInfo.Reason)"
        Stop-Winhost 'Winhost.GuestDidNotStop' 'OperationTimeout' $why.TrimEnd()
    }
    Stop-VM -VM $Vm -TurnOff -Confirm:$false -ErrorAction Stop
}
