# Hyper-V: whether it is available, and its VMs by their ids.
function Test-WinhostHyperV {
    Read-WinhostCached 'hyper-v' {
        $modules = @(Get-Module -ListAvailable -Name Hyper-V -ErrorAction Stop)
        $modules.Count -gt 0 -and (Read-WinhostService 'vmms') -ne 'absent'
    }
}

function Assert-WinhostHyperV {
    # A stopped service does not count as unavailable: then the cmdlets fail, and what they would return is unknown.
    if (-not (Test-WinhostHyperV)) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'Hyper-V or its PowerShell module is not there.' 'HyperVRole'
    }
}

function Find-WinhostVms {
    param($Key)
    Assert-WinhostHyperV
    $desired = Read-WinhostField $Key 'vm'
    # VMs are never found by name, because names are not unique and -Name expands wildcards. One list serves a whole batch.
    $vms = @(Read-WinhostCached 'vms' { Get-VM -ErrorAction Stop })
    foreach ($vm in $vms) {
        if ($null -eq $desired -or "$($vm.Id)" -eq $desired) {
            $vm
        }
    }
}

function Find-WinhostVm {
    param($Key)
    $vms = @(Find-WinhostVms $Key)
    if ($vms.Count -ne 1) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no VM $($Key.vm)."
    }
    $vms[0]
}
