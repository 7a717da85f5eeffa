# key {}   state {hibernation: bool, fast_startup: bool}; set: both
function Get-WinhostFastStartup {
    @{
        key = @{}
        state = @{
            hibernation = Read-WinhostValue { Read-WinhostHibernation }
            fast_startup = [int](Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\Session Manager\Power' 'HiberbootEnabled') -ne 0
        }
    }
}

function Read-WinhostHibernation {
    # Until it is set, newer versions of Windows may have only the default value.
    foreach ($name in @('HibernateEnabled', 'HibernateEnabledDefault')) {
        $set = Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control\Power' $name
        if ($null -ne $set) {
            return [int]$set -ne 0
        }
    }
    Assert-WinhostValue $null
}

function Set-WinhostFastStartup {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('hibernation', 'fast_startup')
    Assert-WinhostAdministrator
    Assert-WinhostBoolean $Desired @('hibernation', 'fast_startup')
    # powercfg.exe creates and removes the hibernation file; writing the registry value would not.
    if (Test-WinhostDesired $Desired 'hibernation') {
        $word = 'off'
        if ($Desired.hibernation) {
            $word = 'on'
        }
        $null = Invoke-WinhostProgram 'powercfg.exe' @('/hibernate', $word) 'Winhost.PowerPlanRefused'
    }
    if (Test-WinhostDesired $Desired 'fast_startup') {
        $path = 'SYSTEM\CurrentControlSet\Control\Session Manager\Power'
        Write-WinhostRegistry $path 'HiberbootEnabled' ([int]$Desired.fast_startup)
    }
}
