# key {account}   state {running: bool, config: sha256 or null, mode: text or null}; how {accept: vm-stop}
function Get-WinhostWslVm {
    param($Key)
    foreach ($account in @(Find-WinhostWslAccounts $Key)) {
        $running = @(Read-WinhostRunningDistros $account)
        $state = @{ running = $running.Count -gt 0; config = $null; mode = $null }
        $state.config = Read-WinhostValue { Read-WinhostVmConfig $account $running }
        foreach ($distro in $running) {
            $inside = @{ account = $account; distro = $distro }
            $state.mode = Read-WinhostValue { Read-WinhostVmMode $inside }
            break
        }
        if ("$($state.mode)" -eq 'none') {
            # It was made without the network that its file names; made again it may get it.
            $state.config = $null
        }
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
    if ($null -eq $text) {
        return $null
    }
    # As Read-WinhostHash, and for its reason.
    $sha256 = New-Object -TypeName System.Security.Cryptography.SHA256CryptoServiceProvider
    $digest = $sha256.ComputeHash((New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false).GetBytes($text))
    $sha256.Dispose()
    [System.BitConverter]::ToString($digest).Replace('-', '').ToLowerInvariant()
}

function Read-WinhostVmConfig {
    param([string]$Account, [string[]]$Running)
    # What the file says where it is older than the VM, which read it; else what was written down before it was changed.
    if ($Running.Count -gt 0 -and (Test-WinhostVmCurrent $Account $Running[0])) {
        return Read-WinhostConfigDigest $Account
    }
    $bytes = Read-WinhostFile (Join-WinhostVmRecord $Account)
    if ($null -eq $bytes) {
        return $null
    }
    (ConvertFrom-Json -InputObject ([System.Text.Encoding]::UTF8.GetString($bytes)) -ErrorAction Stop).config
}

function Test-WinhostVmCurrent {
    param([string]$Account, [string]$Distro)
    # WSL never tells what it read; its kernel tells when it started.
    $folder = Read-WinhostProfile (Read-WinhostSid $Account)
    $written = Read-WinhostFileTime "$folder\.wslconfig"
    $stat = (Invoke-WinhostInDistro @{ account = $Account; distro = $Distro } @('/bin/cat', '/proc/stat') '' 120).output
    if ($stat -cnotmatch '(?m)^btime (\d+)') {
        Stop-Winhost 'Winhost.NotExposed' 'InvalidResult' 'The kernel does not tell when it started.'
    }
    $null -eq $written -or $written -le [long]$Matches[1]
}

function Read-WinhostVmMode {
    param($Inside)
    (Invoke-WinhostInDistro $Inside @('wslinfo', '--networking-mode') '' 120).output.Trim()
}

# ---- what it was made with, kept from before the file is changed

function Join-WinhostVmRecord {
    param([string]$Account)
    "$(Read-WinhostProgramData)\winhost\distros\$Account.json"
}

function Write-WinhostVmRecord {
    param([string]$Account, $Config)
    foreach ($above in @('', '\distros')) {
        Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost$above" ''
    }
    $json = ConvertTo-Json -InputObject @{ config = $Config } -Compress -ErrorAction Stop
    Write-WinhostFile (Join-WinhostVmRecord $Account) ([System.Text.Encoding]::ASCII.GetBytes($json))
}

function Save-WinhostVmConfig {
    param([string]$Account)
    # For whoever is about to write the file.
    $running = @(Read-WinhostRunningDistros $Account)
    if ($running.Count -gt 0 -and (Test-WinhostVmCurrent $Account $running[0])) {
        Write-WinhostVmRecord $Account (Read-WinhostConfigDigest $Account)
    }
}

function Set-WinhostWslVm {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('config')
    Assert-WinhostAccountName $Key.account
    if ($null -ne $Want.config -and "$($Want.config)" -cnotmatch '^[0-9a-f]{64}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'config is the SHA-256 of a text, or null.'
    }
    $running = @(Read-WinhostRunningDistros $Key.account)
    $digest = Read-WinhostConfigDigest $Key.account
    if (-not (Test-WinhostText "$digest" "$($Want.config)" 'Ordinal')) {
        $why = "The .wslconfig of $($Key.account) is another one, so no VM can be made with that."
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' $why
    }
    if ($running.Count -gt 0 -and -not (Test-WinhostAccepted $How 'vm-stop')) {
        Stop-Winhost 'Winhost.EndsDistros' 'ResourceBusy' "What runs in $($running -join ', ') would end."
    }
    foreach ($distro in $running) {
        Suspend-WinhostKeeper @{ account = $Key.account; distro = $distro }
    }
    # Also where nothing runs: a VM without a distro may still be there, and would not read the file again.
    $null = Invoke-WinhostWsl $Key.account @('--shutdown') '' 120
    Write-WinhostVmRecord $Key.account $digest
    # What ran runs again, now with what the file says.
    foreach ($distro in $running) {
        Resume-WinhostDistro @{ account = $Key.account; distro = $distro }
    }
}
