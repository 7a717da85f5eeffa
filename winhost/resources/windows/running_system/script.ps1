# key {}   state {system: windows | linux-next, linux: text or null, installer: text or null}; set: system
function Get-WinhostRunningSystem {
    Assert-WinhostAdministrator
    $state = @{ system = 'windows'; linux = $null; installer = $null }
    if ((Read-WinhostFirmwareKind) -ceq 'uefi') {
        $from = Find-WinhostLinuxHome
        foreach ($entry in @(Read-WinhostBootEntries)) {
            if ($null -eq $state.linux -and @('any', "$($entry.partition)") -ccontains $from -and "$($entry.path)" -match '\\(ubuntu\\(shim|grub)|debian\\shim)x64\.efi\z') {
                $state.linux = $entry.entry
            }
        }
        foreach ($made in @(Get-WinhostOwnBootEntry ([PSCustomObject]@{ name = 'installer' }))) {
            if ($null -eq $state.installer) {
                $state.installer = $made.state.entry
            }
        }
        $next = Read-WinhostBootNumber 'BootNext'
        if ($null -ne $next -and @($state.linux, $state.installer) -ccontains $next) {
            $state.system = 'linux-next'
        }
    }
    @{ key = @{}; state = $state }
}

function Find-WinhostLinuxHome {
    # The EFI system partition that the Linux is started from: any, where winhost made no partition for one; nothing, where
    # it did and the installer has not left the label of that among the boot loader's files. Until then, what else starts
    # an Ubuntu is an older one, or its remains.
    $record = Find-WinhostMadeRecord 'partition' ([PSCustomObject]@{ name = 'linux' })
    if ($null -eq $record) {
        return 'any'
    }
    $mark = Measure-WinhostText "$($record.label)`n"
    foreach ($each in @(Find-WinhostEfiPartitions)) {
        if ((Read-WinhostVolumeHash "$(Read-WinhostPartitionRoot $each.found)EFI\ubuntu\winhost.txt") -ceq $mark) {
            return $each.guid
        }
    }
}

function Set-WinhostRunningSystem {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('system')
    Assert-WinhostAdministrator
    if (@('windows', 'linux') -cnotcontains $Desired.system) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'system is windows or linux.'
    }
    Assert-WinhostUefi
    $now = (Get-WinhostRunningSystem).state
    if ($Desired.system -ceq 'windows') {
        # It runs; what was to come instead does not come.
        if ($now.system -cne 'windows') {
            Set-WinhostFirmwareBoot $null ([PSCustomObject]@{ next = $null }) $How
        }
        return
    }
    $next = $now.linux
    if ($null -eq $next) {
        $next = $now.installer
    }
    if ($null -eq $next) {
        Stop-Winhost 'Winhost.NoLinux' 'ObjectNotFound' 'No boot entry starts a Linux, or an installer of one that winhost made.'
    }
    if ((Read-WinhostBootNumber 'BootNext') -cne $next) {
        Set-WinhostFirmwareBoot $null ([PSCustomObject]@{ next = $next }) $How
    }
    @{ restart = @(@{ system = 'host' }) }
}
