# key {account}   state {task: absent | ready | disabled | stale, settings: text or null, key: text or null, digest: text or null}; how {secret: the key}
function Get-WinhostYieldWatcher {
    param($Key)
    Assert-WinhostAdministrator
    $watch = @(foreach ($task in @(Find-WinhostTasks)) { if ($task.TaskName -like 'watch-*') { 1 } })
    if ($null -ne $Key -or $watch) {
        Assert-WinhostPart 'Read-WinhostWatchers'
        Read-WinhostWatchers $Key
    }
}

function Read-WinhostWatchers {
    param($Key)
    $accounts = @(foreach ($task in @(Find-WinhostTasks)) { if ($task.TaskName -match '^watch-(.+)$') { $Matches[1] } })
    if ($null -ne $Key) {
        $accounts = @("$(Read-WinhostField $Key 'account')")
        Assert-WinhostLocalAccountName $accounts[0]
    }
    foreach ($account in $accounts) {
        @{ key = @{ account = $account }; state = Read-WinhostWatcher $account }
    }
}

function Read-WinhostWatcher {
    param([string]$Account)
    $state = @{
        task = Read-WinhostTaskState (Find-WinhostTask "watch-$Account")
        settings = Read-WinhostWatcherFile $Account 'settings.json'
        key = Read-WinhostWatcherFile $Account 'reference'
        digest = ConvertTo-WinhostDigest (Read-WinhostFile "$(Read-WinhostWatcherFolder $Account)\key")
    }
    $script = "$(Read-WinhostWatcherFile $Account 'watch.ps1')".Replace("`r", '')
    if ($state.task -eq 'ready' -and -not (Test-WinhostText $script "$script:WinhostWatcherScript".Replace("`r", '') 'Ordinal')) {
        $state.task = 'stale'
    }
    $state
}

function Read-WinhostWatcherFile {
    param([string]$Account, [string]$Name)
    $bytes = Read-WinhostFile "$(Read-WinhostWatcherFolder $Account)\$Name"
    if ($null -eq $bytes) {
        return $null
    }
    [System.Text.Encoding]::ASCII.GetString($bytes)
}

function Read-WinhostWatcherFolder {
    param([string]$Account)
    "$(Read-WinhostDataFolder)\watchers\$Account"
}

function Assert-WinhostLocalAccountName {
    param([string]$Account)
    # The name becomes part of paths, of task names and of a task's command line. Allows what Windows allows in the name of
    # a local account, except characters of Task Scheduler variables.
    if ($Account -cnotmatch '^[^\s."/\\\[\]:;|=,+*?<>@%$]([^\x00-\x1f"/\\\[\]:;|=,+*?<>@%$]{0,18}[^\s."/\\\[\]:;|=,+*?<>@%$])?\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The account is the name of a local account, 20 characters at most, without %, $ and what no such name has.'
    }
}

function Set-WinhostYieldWatcher {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('task', 'settings', 'key', 'digest')
    $account = "$($Key.account)"
    $goal = Read-WinhostWatcher $account
    Join-WinhostDesired $goal $Desired
    Assert-WinhostWatcher $goal
    $task = Find-WinhostTask "watch-$account"
    if ($null -ne $task) {
        Stop-ScheduledTask -InputObject $task -ErrorAction Stop
    }
    if ($goal.task -eq 'absent') {
        if ($null -ne $task) {
            Unregister-ScheduledTask -InputObject $task -Confirm:$false -ErrorAction Stop
        }
        Remove-WinhostFolder (Read-WinhostWatcherFolder $account)
    }
    else {
        Install-WinhostWatcher $account $goal (Read-WinhostField $How 'secret')
    }
    $script:WinhostCache = @{}
}

function Assert-WinhostWatcher {
    param($Goal)
    if (@('absent', 'ready', 'disabled') -cnotcontains $Goal.task) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'task is absent, ready or disabled.'
    }
    $given = @(foreach ($name in @('settings', 'key', 'digest')) { if ($null -ne $Goal[$name]) { $name } }).Count
    if ($given -ne @(3, 0)[[int]($Goal.task -eq 'absent')]) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A watcher has settings, key and digest; without its task it has none of them.'
    }
    if ($Goal.task -ne 'absent' -and ("$($Goal.settings)" -cnotmatch '\A[\x20-\x7e]+\z' -or "$($Goal.key)" -cnotmatch '\A[\x20-\x7e]+\z')) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'settings and key are one line of ASCII each.'
    }
}

function Install-WinhostWatcher {
    param([string]$Account, $Goal, $Secret)
    $user = Find-WinhostAccount $Account
    if ($null -eq $user) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no local account $Account."
    }
    $ascii = [System.Text.Encoding]::ASCII
    $folder = Read-WinhostWatcherFolder $Account
    $bytes = $null
    if ($null -eq $Secret) {
        $bytes = Read-WinhostFile "$folder\key"
    }
    else {
        $bytes = $ascii.GetBytes("$Secret")
    }
    if ((ConvertTo-WinhostDigest $bytes) -cne $Goal.digest) {
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' 'The key is another than the gateway knows: its hash differs.'
    }
    Initialize-WinhostDataFolder 'watchers'
    # Only the account and administrators can read the files, and the account cannot create, change or remove any.
    Initialize-WinhostFolder $folder 'read' "$($user.SID)"
    Write-WinhostFile "$folder\key" $bytes
    Write-WinhostFile "$folder\reference" ($ascii.GetBytes("$($Goal.key)"))
    Write-WinhostFile "$folder\settings.json" ($ascii.GetBytes("$($Goal.settings)"))
    Write-WinhostFile "$folder\watch.ps1" ($ascii.GetBytes("$script:WinhostWatcherScript"))
    # The status of the watcher: the only file to which the account can write. It can neither remove nor replace it.
    Write-WinhostFile "$folder\last.txt" ($ascii.GetBytes(''))
    Write-WinhostFileRights "$folder\last.txt" "$script:WinhostOnlyAdministratorsFile(A;;0x12019f;;;$($user.SID))"
    $task = @{
        name = "watch-$Account"
        program = "$(Read-WinhostSystemFolder)\WindowsPowerShell\v1.0\powershell.exe"
        arguments = "-NoProfile -NonInteractive -WindowStyle Hidden -ExecutionPolicy Bypass -File `"$folder\watch.ps1`""
        trigger = $script:WinhostAtLogon
    }
    Register-WinhostAccountTask $task "$($user.Name)" $null
    $script:WinhostCache = @{}
    Switch-WinhostTask "watch-$Account" $Goal.task
    if ($Goal.task -eq 'ready') {
        # Starts the task if the user is logged on now; otherwise it starts at the next logon.
        Invoke-WinhostBestEffort "The watcher of $Account starts with the next logon" {
            Start-ScheduledTask -InputObject (Find-WinhostTask "watch-$Account") -ErrorAction Stop
        }
    }
}
