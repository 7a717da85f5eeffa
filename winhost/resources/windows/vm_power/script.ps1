# key {vm: guid}   state {state: off | running | saved | paused}; how {accept: vm-turn-off, within: seconds}
function Get-WinhostVmPower {
    param($Key)
    foreach ($vm in @(Find-WinhostVms $Key)) {
        @{ key = @{ vm = "$($vm.Id)" }; state = @{ state = ConvertTo-WinhostKebab "$($vm.State)" } }
    }
}

function Set-WinhostVmPower {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('state')
    $vm = Find-WinhostVm $Key
    switch (ConvertFrom-WinhostKebab $Desired.state @('Off', 'Running', 'Saved', 'Paused')) {
        'Off' {
            Stop-WinhostVm $vm $How
        }
        'Running' {
            if ("$($vm.State)" -eq 'Paused') {
                Resume-VM -VM $vm -ErrorAction Stop
            }
            else {
                Start-VM -VM $vm -ErrorAction Stop
            }
        }
        'Saved' {
            Save-VM -VM $vm -ErrorAction Stop
        }
        'Paused' {
            Suspend-VM -VM $vm -ErrorAction Stop
        }
    }
}

function Stop-WinhostVm {
    param($Vm, $How)
    # Saved and paused memory is data that winhost must not discard.
    if (@('Saved', 'Paused') -contains "$($Vm.State)") {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The VM is $($Vm.State): start it, and shut it down from inside."
    }
    $within = Read-WinhostTimeout $How 300
    $end = (Read-WinhostClock) + $within
    $job = $null
    try {
        do {
            if ($null -eq $job -and (Test-WinhostShutdownService $Vm)) {
                $job = Stop-VM -VM $Vm -AsJob -Confirm:$false -ErrorAction Stop
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
            $off = "$((Get-VM -Id $Vm.Id -ErrorAction Stop).State)" -eq 'Off'
            $failed = $null -ne $job -and "$($job.State)" -eq 'Failed'
        } while (-not $off -and -not $failed -and (Read-WinhostClock) -lt $end)
        if (-not $off) {
            Stop-WinhostUnresponsiveVm $Vm $job $within $How
        }
    }
    finally {
        # Otherwise each shutdown would leave a job in the session. -Force removes a job that still waits for its guest.
        if ($null -ne $job) {
            Invoke-WinhostBestEffort 'The job of the shutdown could not be removed' { Remove-Job -Job $job -Force -ErrorAction Stop }
        }
    }
}

function Test-WinhostShutdownService {
    param($Vm)
    # Without this service Stop-VM asks whether to turn the VM off, and as a job it answers yes by itself. The service is
    # found by its id, because its name is localized.
    foreach ($service in @(Get-VMIntegrationService -VM $Vm -ErrorAction Stop)) {
        if ("$($service.Id)" -like '*9F8233AC-BE49-4C79-8EE3-E7E1985B2077') {
            return $service.Enabled -and "$($service.PrimaryOperationalStatus)" -eq 'Ok'
        }
    }
    $false
}

function Stop-WinhostUnresponsiveVm {
    param($Vm, $Job, $Within, $How)
    if (-not (Test-WinhostConsent $How 'vm-turn-off')) {
        $why = 'Its shutdown service did not answer: Hyper-V has it disabled, or the guest does not run it.'
        if ($null -ne $Job) {
            $why = "$($Job.JobStateInfo.Reason)"
        }
        Stop-Winhost 'Winhost.GuestDidNotStop' 'OperationTimeout' "The guest did not shut down within $Within s. $why".TrimEnd()
    }
    Stop-VM -VM $Vm -TurnOff -Confirm:$false -ErrorAction Stop
}
