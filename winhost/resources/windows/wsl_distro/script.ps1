# key {account, distro}   state {installed: bool, running: bool, image: sha256 or null, folder: text or null, file_size: bytes or null, others: int}; how {accept: data, within: seconds}
function Get-WinhostWslDistro {
    param($Key)
    $accounts = @(Find-WinhostWslAccounts $Key)
    Assert-WinhostPart 'Read-WinhostDistros'
    Read-WinhostDistros $Key $accounts
}

function Read-WinhostDistros {
    param($Key, $Accounts)
    foreach ($account in $Accounts) {
        $names = @(Read-WinhostDistroNames $account)
        $running = @(Read-WinhostRunningDistros $account)
        $records = @{}
        foreach ($name in $names) {
            $record = Read-WinhostOwnDistroRecord $account $name
            if ($null -ne $record) {
                $records[$name] = $record
            }
        }
        foreach ($name in $names) {
            $state = @{
                installed = $true
                running = $running -contains $name
                image = $null
                folder = $null
                file_size = $null
                others = $names.Count - $records.Count
            }
            if ($records.ContainsKey($name)) {
                $state.image = $records[$name].image
                $state.folder = Read-WinhostDistroFolder $account $name
                $state.file_size = Read-WinhostValue { [long](Read-WinhostLength "$($state.folder)\ext4.vhdx") }
            }
            @{ key = @{ account = $account; distro = $name }; state = $state }
        }
    }
    if ($null -ne $Key) {
        $state = @{ installed = $false; running = $false; image = $null; folder = $null; file_size = $null; others = 0 }
        $asked = @{ account = "$(Read-WinhostField $Key 'account')"; distro = "$(Read-WinhostField $Key 'distro')" }
        @{ key = $asked; state = $state }
    }
}

function Set-WinhostWslDistro {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('installed', 'image', 'running')
    Assert-WinhostDistroKey $Key
    Assert-WinhostBoolean $Desired @('installed', 'running')
    if (Test-WinhostDesired $Desired 'installed') {
        if ($Desired.installed) {
            Add-WinhostDistro $Key (Read-WinhostField $Desired 'image') $How
        }
        else {
            Remove-WinhostDistro $Key $Desired $How
            return
        }
    }
    elseif (Test-WinhostDesired $Desired 'image') {
        Assert-WinhostImage $Desired.image
        Assert-WinhostOwnDistro $Key
        Assert-WinhostDistroImage $Key $Desired.image
    }
    if (Test-WinhostDesired $Desired 'running') {
        Assert-WinhostOwnDistro $Key
        if ($Desired.running) {
            Start-WinhostDistro $Key
        }
        else {
            Stop-WinhostDistro $Key
        }
    }
}

# ---- wsl.exe as the account

function Find-WinhostWslAccounts {
    param($Key)
    # Returns the accounts that can run jobs, because only the user who owns a distro can see it.
    Assert-WinhostAdministrator
    if ($null -eq (Read-WinhostWslRegistry 'Version')) {
        # The WSL that is part of Windows does not run in a session that is not interactive.
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'WSL is not installed as a package.' 'Wsl'
    }
    $found = @()
    foreach ($task in @(Find-WinhostTasks)) {
        if ($task.TaskName -match '^jobs-(.+)$') {
            $account = $Matches[1]
            Assert-WinhostPart 'Test-WinhostJobsTask'
            if (Test-WinhostJobsTask $account) {
                $found += $account
            }
        }
    }
    if ($found.Count -eq 0) {
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'No account can run jobs here.' 'AccountTasks'
    }
    Assert-WinhostPart 'Select-WinhostWslAccounts'
    Select-WinhostWslAccounts $Key $found
}

function Select-WinhostWslAccounts {
    param($Key, [string[]]$Accounts)
    if (@('installed', 'uninstall-pending') -cnotcontains (Read-WinhostOptionalFeature 'VirtualMachinePlatform')) {
        # The feature was removed: no distro starts until it is installed again and Windows has restarted.
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' 'WSL cannot make a VM here.' 'VirtualMachinePlatform'
    }
    $asked = Read-WinhostField $Key 'account'
    foreach ($account in $Accounts) {
        if ($null -eq $asked -or (Test-WinhostText $account $asked 'OrdinalIgnoreCase')) {
            $account
        }
    }
}

function Test-WinhostJobsTask {
    param([string]$Account)
    $null -ne (Find-WinhostJobsTask $Account)
}

function Invoke-WinhostWsl {
    param([string]$Account, [string[]]$Arguments, [string]$InputFile, [int]$Seconds)
    # WSL 3 may wait for 4 minutes.
    if ("$(Read-WinhostWslRegistry 'Version')" -cmatch '^([3-9]|\d\d)') {
        $Seconds = [System.Math]::Max($Seconds, 300)
    }
    $ended = Invoke-WinhostJob $Account @{ kind = 'wsl'; arguments = @($Arguments); input = $InputFile } $Seconds
    # Old versions write UTF-16 even if UTF-8 is requested.
    $ended.output = "$($ended.output)".Replace("$([char]0)", '')
    $ended.errors = "$($ended.errors)".Replace("$([char]0)", '')
    $said = "$($ended.output)`n$($ended.errors)".Trim()
    # These are exit codes of programs in the distro; wsl.exe itself exits with -1.
    if ($ended.code -gt 0 -and $ended.code -lt 256) {
        Stop-Winhost 'Winhost.InDistroFailed' 'InvalidResult' "In the distro: $said ($($ended.code))"
    }
    if ($ended.code -ne 0) {
        $why = "wsl.exe ended with $($ended.code): $said"
        # The message is localized, but this code is not.
        if ($said -cmatch 'Wsl/[A-Za-z0-9_/]+') {
            Stop-Winhost "Winhost.WslFailed,$($Matches[0])" 'InvalidResult' $why
        }
        Stop-Winhost 'Winhost.WslFailed' 'InvalidResult' $why
    }
    $ended
}

function Invoke-WinhostDistroCommand {
    param($Key, [string[]]$Command, [string]$InputFile, [int]$Seconds)
    # Runs the command without a shell, so that arguments are passed unchanged.
    $arguments = @('-d', $Key.distro, '-u', 'root', '--cd', '/', '-e') + $Command
    Invoke-WinhostWsl $Key.account $arguments $InputFile $Seconds
}

function Split-WinhostLines {
    param([string]$Text)
    foreach ($line in $Text.Split("`n")) {
        if ($line.Trim() -ne '') {
            $line.TrimEnd()
        }
    }
}

function Read-WinhostDistroNames {
    param([string]$Account)
    # Lists all distros, including those that are being imported.
    Read-WinhostCached "distros of $Account" {
        Split-WinhostLines (Invoke-WinhostWsl $Account @('--list', '--quiet', '--all') '' 120).output
    }
}

function Read-WinhostRunningDistros {
    param([string]$Account)
    Read-WinhostCached "running distros of $Account" {
        Split-WinhostLines (Invoke-WinhostWsl $Account @('--list', '--quiet', '--running') '' 120).output
    }
}

# ---- records of winhost's distros

function Assert-WinhostDistroKey {
    param($Key)
    # The name becomes part of paths and arguments.
    if ("$($Key.distro)" -cnotmatch '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z' -or "$($Key.distro)" -match '\.\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'That is no name of a distro: letters, digits, dots and dashes.'
    }
    Assert-WinhostAccountName $Key.account
    foreach ($part in @($Key.account, $Key.distro)) {
        # Windows treats these names as devices in any folder, with any extension.
        if ($part -match '^(CON|PRN|AUX|NUL|COM[0-9]|LPT[0-9])(\.|\z)') {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$part is a device of Windows."
        }
    }
}

function Read-WinhostDistroFolder {
    param([string]$Account, [string]$Distro)
    "$(Read-WinhostDataFolder)\distros\$Account\$Distro"
}

function Read-WinhostDistroRecord {
    param([string]$Account, [string]$Distro)
    Read-WinhostJson "$(Read-WinhostDistroFolder $Account $Distro).json"
}

function Read-WinhostOwnDistroRecord {
    param([string]$Account, [string]$Distro)
    # Returns the record of a distro that winhost created, if its disk still exists there.
    $record = Read-WinhostDistroRecord $Account $Distro
    $disk = "$(Read-WinhostDistroFolder $Account $Distro)\ext4.vhdx"
    if ($null -ne $record -and $record.complete -and -not (Test-WinhostEmptyPath $disk)) {
        $record
    }
}

function Write-WinhostDistroRecord {
    param($Key, $Record)
    Write-WinhostJson "$(Read-WinhostDistroFolder $Key.account $Key.distro).json" $Record
}

function Test-WinhostDistro {
    param($Key)
    @(Read-WinhostDistroNames $Key.account) -contains $Key.distro
}

function Assert-WinhostOwnDistro {
    param($Key)
    if (-not (Test-WinhostDistro $Key)) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "$($Key.account) has no distro $($Key.distro)."
    }
    if ($null -eq (Read-WinhostOwnDistroRecord $Key.account $Key.distro)) {
        $why = "winhost did not make the distro $($Key.distro) of $($Key.account), and leaves it alone."
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' $why
    }
}

function Assert-WinhostDistroImage {
    param($Key, [string]$Image)
    if ((Read-WinhostOwnDistroRecord $Key.account $Key.distro).image -cne $Image) {
        $why = "$($Key.distro) was imported from another image: take it away first."
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' $why
    }
}

# ---- creating, removing, starting and stopping

function Assert-WinhostImage {
    param($Image)
    if ("$Image" -cnotmatch '^[0-9a-f]{64}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'image is the SHA-256 of a staged file.'
    }
}

function Read-WinhostLongTimeout {
    param($How, [int]$Least)
    # Returns at least $Least seconds: a slow disk takes twenty times as long as a fast one.
    [Math]::Max($Least, (Read-WinhostTimeout $How $Least))
}

function Add-WinhostDistro {
    param($Key, $Image, $How)
    Assert-WinhostImage $Image
    $there = Test-WinhostDistro $Key
    if ($there -and $null -ne (Read-WinhostOwnDistroRecord $Key.account $Key.distro)) {
        Assert-WinhostDistroImage $Key $Image
        return
    }
    $staged = Find-WinhostStagedFile $Image
    $folder = Read-WinhostDistroFolder $Key.account $Key.distro
    $record = Read-WinhostDistroRecord $Key.account $Key.distro
    # A distro whose import winhost has not completed contains no data, and may be removed.
    $begun = $null -ne $record -and -not $record.complete
    $begun = $begun -and (-not $there -or -not (Test-WinhostEmptyPath "$folder\ext4.vhdx"))
    if (($there -or -not (Test-WinhostEmptyPath $folder)) -and -not $begun) {
        $why = "There is a distro $($Key.distro) of $($Key.account) that winhost did not make, or something in $folder."
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' $why
    }
    if ($there) {
        $null = Invoke-WinhostWsl $Key.account @('--unregister', $Key.distro) '' 600
    }
    Remove-WinhostAccountFolder $Key.account $folder
    Initialize-WinhostDataFolder 'distros', $Key.account
    Write-WinhostDistroRecord $Key @{ image = $Image; complete = $false; conf = $null; access = $null }
    Initialize-WinhostFolder $folder 'kept' (Read-WinhostSid $Key.account)
    $files = "$(Read-WinhostDataFolder)\files"
    $ended = $false
    try {
        # The account reads the image itself, although it need not be an administrator.
        Initialize-WinhostFolder $files 'everybody'
        $arguments = @('--import', $Key.distro, $folder, $staged, '--version', '2')
        $null = Invoke-WinhostWsl $Key.account $arguments '' (Read-WinhostLongTimeout $How 3600)
        $ended = $true
    }
    catch {
        # WSL removes an incomplete distro. If it still works on it, the record shows that the distro is winhost's.
        if ("$($_.FullyQualifiedErrorId)" -like 'Winhost.WslFailed*') {
            Invoke-WinhostBestEffort "What is left in $folder could not be removed" {
                Remove-WinhostAccountFolder $Key.account $folder
                Remove-WinhostFile "$folder.json"
            }
            Invoke-WinhostBestEffort "The VM of $($Key.account) could not be ended" { Stop-WinhostIdleVm $Key.account }
        }
        throw
    }
    finally {
        Invoke-WinhostCleanup $ended "Others can still read $files" { Initialize-WinhostFolder $files 'ours' }
    }
    Write-WinhostDistroRecord $Key @{ image = $Image; complete = $true; conf = $null; access = $null }
    $script:WinhostCache = @{}
}

function Remove-WinhostDistro {
    param($Key, $Desired, $How)
    if ((Read-WinhostField $Desired 'running') -eq $true -or $null -ne (Read-WinhostField $Desired 'image')) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'What is not installed has no image and does not run.'
    }
    Assert-WinhostOwnDistro $Key
    Stop-WinhostKeepAliveTask $Key
    if (-not (Test-WinhostConsent $How 'data')) {
        Export-WinhostDistro $Key $How
    }
    $null = Invoke-WinhostWsl $Key.account @('--unregister', $Key.distro) '' 600
    $folder = Read-WinhostDistroFolder $Key.account $Key.distro
    Remove-WinhostAccountFolder $Key.account $folder
    Remove-WinhostFile "$folder.json"
    Stop-WinhostIdleVm $Key.account
}

function Stop-WinhostIdleVm {
    param([string]$Account)
    # Without an idle timeout, the VM runs on without distros, and keeps its memory and files in the account's profile.
    $script:WinhostCache = @{}
    if (@(Read-WinhostRunningDistros $Account).Count -eq 0) {
        $null = Invoke-WinhostWsl $Account @('--shutdown') '' 120
    }
}

function Remove-WinhostAccountFolder {
    param([string]$Account, [string]$Folder)
    # The account removes the files, because it could redirect other users with links.
    if (Remove-WinhostEmptyFolder $Folder) {
        return
    }
    $null = Invoke-WinhostJob $Account @{ kind = 'clear'; path = $Folder } 600
    if (-not (Remove-WinhostEmptyFolder $Folder)) {
        Stop-Winhost 'Winhost.NotEmpty' 'ResourceExists' "$Folder is not empty: something was written to it again."
    }
}

function Export-WinhostDistro {
    param($Key, $How)
    $exports = "$(Read-WinhostDataFolder)\exports"
    Initialize-WinhostFolder $exports 'ours'
    # Each account has its own folder, because others must not read its distros.
    $exports = "$exports\$($Key.account)"
    Initialize-WinhostFolder $exports 'kept' (Read-WinhostSid $Key.account)
    $number = 1
    while (-not (Test-WinhostEmptyPath "$exports\$($Key.distro)-$number.tar")) {
        $number++
    }
    $arguments = @('--export', $Key.distro, "$exports\$($Key.distro)-$number.tar")
    $null = Invoke-WinhostWsl $Key.account $arguments '' (Read-WinhostLongTimeout $How 3600)
}

function Start-WinhostDistro {
    param($Key)
    if (@(Read-WinhostRunningDistros $Key.account).Count -eq 0) {
        # A VM whose last distro has stopped runs on for a while, with the .wslconfig that it read when it started.
        $null = Invoke-WinhostWsl $Key.account @('--shutdown') '' 120
    }
    Resume-WinhostDistro $Key
    # WSL stops a distro 15 s after its last Windows process has ended, even if services run in it.
    Start-Sleep -Seconds 20 -ErrorAction Stop
    $script:WinhostCache = @{}
    if (@(Read-WinhostRunningDistros $Key.account) -notcontains $Key.distro) {
        $why = "$($Key.distro) started and ended again: nothing holds it. Set instanceIdleTimeout=-1 in [general] of .wslconfig."
        Stop-Winhost 'Winhost.NotHeld' 'InvalidResult' $why
    }
}

function Find-WinhostKeepAliveTask {
    param($Key)
    # Returns the enabled task that keeps this distro running, if there is one.
    $task = Find-WinhostTask "keep-alive-$($Key.account)"
    if ($null -ne $task -and "$($task.State)" -ne 'Disabled' -and (Read-WinhostTaskDistro $task) -eq $Key.distro) {
        $task
    }
}

function Resume-WinhostDistro {
    param($Key)
    foreach ($task in @(Find-WinhostKeepAliveTask $Key)) {
        Start-ScheduledTask -InputObject $task -ErrorAction Stop
    }
    $null = Invoke-WinhostDistroCommand $Key @('/bin/true') '' 300
}

function Stop-WinhostKeepAliveTask {
    param($Key)
    # Stops the task, because otherwise it would start the distro again. A task that was stopped is not restarted.
    foreach ($task in @(Find-WinhostKeepAliveTask $Key)) {
        Stop-ScheduledTask -InputObject $task -ErrorAction Stop
    }
}

function Stop-WinhostDistro {
    param($Key)
    Stop-WinhostKeepAliveTask $Key
    $null = Invoke-WinhostWsl $Key.account @('--terminate', $Key.distro) '' 120
}
