# Hyper-V: whether it can be asked, and its VMs by what survives.
function Test-WinhostHyperV {
    Read-WinhostCached 'hyper-v' {
        $modules = @(Get-Module -ListAvailable -Name Hyper-V -ErrorAction Stop)
        $modules.Count -gt 0 -and (Read-WinhostService 'vmms') -ne 'absent'
    }
}

function Assert-WinhostHyperV {
    # A stopped service is another matter: then the cmdlets fail, and what they would tell is unknown.
    if (-not (Test-WinhostHyperV)) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'Hyper-V or its PowerShell module is not there.' 'HyperVRole'
    }
}

function Find-WinhostVms {
    param($Key)
    Assert-WinhostHyperV
    $desired = Read-WinhostField $Key 'vm'
    # Never by name: names repeat, and -Name takes wildcards. One listing serves a whole batch.
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
