# key {account}   state {running: bool, config: sha256 or null, mode: text or null}; how {accept: vm-stop}
function Get-WinhostWslVm {
    param($Key)
    $accounts = @(Find-WinhostWslAccounts $Key)
    Assert-WinhostPart 'Read-WinhostWslVms'
    Read-WinhostWslVms $Key $accounts
}

function Read-WinhostWslVms {
    param($Key, $Accounts)
    foreach ($account in $Accounts) {
        $running = @(Read-WinhostRunningDistros $account)
        $state = @{ running = $running.Count -gt 0; config = $null; mode = $null }
        $state.config = Read-WinhostValue { Read-WinhostVmConfig $account $running }
        $state.mode = Read-WinhostValue { Read-WinhostVmMode $account $running }
        @{ key = @{ account = $account }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ account = "$(Read-WinhostField $Key 'account')" }; state = @{ running = $false; config = $null; mode = $null } }
    }
}

function Read-WinhostConfigDigest {
    param([string]$Account)
    $folder = Read-WinhostProfile (Read-WinhostSid $Account)
    if ($null -eq $folder) {
        return $null
    }
    $text = (Read-WinhostWslConfig $folder).text
    if ($null -ne $text) {
        Measure-WinhostText $text
    }
}

function Read-WinhostVmConfig {
    param([string]$Account, [string[]]$Running)
    # Returns the hash of the file if it is older than the VM; otherwise the hash that was recorded before it was changed.
    if ($Running.Count -gt 0 -and (Test-WinhostVmCurrent $Account $Running[0])) {
        return Read-WinhostConfigDigest $Account
    }
    Read-WinhostField (Read-WinhostVmRecord $Account) 'config'
}

function Test-WinhostVmCurrent {
    param([string]$Account, [string]$Distro)
    # Tests whether the VM was started after the file was written. WSL does not report which settings it read, but its
    # kernel reports when it started.
    $folder = Read-WinhostProfile (Read-WinhostSid $Account)
    $written = Read-WinhostFileTime "$folder\.wslconfig"
    $stat = (Invoke-WinhostDistroCommand @{ account = $Account; distro = $Distro } @('/bin/cat', '/proc/stat') '' 120).output
    if ($stat -cnotmatch '(?m)^btime (\d+)') {
        Stop-Winhost 'Winhost.NotExposed' 'InvalidResult' 'The kernel does not report when it started.'
    }
    $null -eq $written -or $written -le [long]$Matches[1]
}

function Read-WinhostVmMode {
    param([string]$Account, [string[]]$Running)
    if ($Running.Count -eq 0) {
        return Read-WinhostField (Read-WinhostVmRecord $Account) 'mode'
    }
    $inside = @{ account = $Account; distro = $Running[0] }
    $mode = (Invoke-WinhostDistroCommand $inside @('wslinfo', '--networking-mode') '' 120).output.Trim()
    if ($mode -eq 'bridged' -and -not (Test-WinhostVmLink $inside)) {
        # WSL reports the mode that it set up at start. If the switch was removed or created again since, there is no link.
        return 'none'
    }
    $mode
}

function Test-WinhostVmLink {
    param($Inside)
    try {
        (Invoke-WinhostDistroCommand $Inside @('/bin/cat', '/sys/class/net/eth0/carrier') '' 120).output.Trim() -eq '1'
    }
    catch {
        # The interface does not exist, or is down.
        if ("$($_.FullyQualifiedErrorId)" -like 'Winhost.InDistroFailed*') {
            return $false
        }
        throw
    }
}

# ---- the record of the settings with which a VM was started

function Join-WinhostVmRecordPath {
    param([string]$Account)
    "$(Read-WinhostDataFolder)\distros\$Account.json"
}

function Read-WinhostVmRecord {
    param([string]$Account)
    Read-WinhostJson (Join-WinhostVmRecordPath $Account)
}

function Write-WinhostVmRecord {
    param([string]$Account, $Config, $Mode)
    Initialize-WinhostDataFolder 'distros'
    Write-WinhostJson (Join-WinhostVmRecordPath $Account) @{ config = $Config; mode = $Mode }
}

function Save-WinhostVmConfig {
    param([string]$Account)
    # Records the settings of a running VM before the file is changed.
    $running = @(Read-WinhostRunningDistros $Account)
    if ($running.Count -gt 0 -and (Test-WinhostVmCurrent $Account $running[0])) {
        Write-WinhostVmRecord $Account (Read-WinhostConfigDigest $Account) (Read-WinhostVmMode $Account $running)
    }
}

function Set-WinhostWslVm {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('config', 'mode')
    Assert-WinhostAccountName $Key.account
    Assert-WinhostPattern $Desired 'config' '^[0-9a-f]{64}\z' 'the SHA-256 of a text, or null'
    $config = Read-WinhostField $Desired 'config'
    $mode = Read-WinhostField $Desired 'mode'
    if ($null -ne $mode -and @('bridged', 'mirrored', 'nat') -cnotcontains "$mode") {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'mode is bridged, mirrored or nat, or null.'
    }
    $running = @(Read-WinhostRunningDistros $Key.account)
    $digest = Read-WinhostConfigDigest $Key.account
    if ((Test-WinhostDesired $Desired 'config') -and -not (Test-WinhostText "$digest" "$config" 'Ordinal')) {
        $why = "The .wslconfig of $($Key.account) is another one, so no VM can be made with that."
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' $why
    }
    if ($running.Count -gt 0 -and -not (Test-WinhostConsent $How 'vm-stop')) {
        Stop-Winhost 'Winhost.EndsDistros' 'ResourceBusy' "What runs in $($running -join ', ') would end."
    }
    if (-not (Test-WinhostDesired $Desired 'mode')) {
        $mode = Read-WinhostVmMode $Key.account $running
    }
    foreach ($distro in $running) {
        Stop-WinhostKeepAliveTask @{ account = $Key.account; distro = $distro }
    }
    # Also if no distro runs: the VM may still run, and would not read the file again.
    $null = Invoke-WinhostWsl $Key.account @('--shutdown') '' 120
    Write-WinhostVmRecord $Key.account $digest $mode
    # Starts the stopped distros again, with the new settings.
    foreach ($distro in $running) {
        Resume-WinhostDistro @{ account = $Key.account; distro = $distro }
    }
}
