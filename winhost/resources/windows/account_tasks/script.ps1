# key {account}   state {jobs: absent | ready | disabled | stale, keep_alive: absent | ready | disabled, distro: text or null, program: text or null, logon: password | s4u | refused or null}; how {within: seconds}
$script:WinhostTaskPath = '\winhost\'
# Triggers of tasks: the start of Windows, and the logon of the task's account.
$script:WinhostAtStart = 8
$script:WinhostAtLogon = 9

function Get-WinhostAccountTasks {
    param($Key)
    Assert-WinhostAdministrator
    if ($null -ne $Key -or @(Find-WinhostTasks).Count -gt 0) {
        Assert-WinhostPart 'Read-WinhostAccountTasks'
        Read-WinhostAccountTasks $Key
    }
}

function Read-WinhostAccountTasks {
    param($Key)
    $accounts = @{}
    foreach ($task in @(Find-WinhostTasks)) {
        if ($task.TaskName -match '^(jobs|keep-alive)-(.+)$') {
            $accounts[$Matches[2]] = $true
        }
    }
    foreach ($account in @($accounts.Keys)) {
        @{ key = @{ account = $account }; state = Read-WinhostTasksState $account }
    }
    if ($null -ne $Key) {
        $account = "$(Read-WinhostField $Key 'account')"
        @{ key = @{ account = $account }; state = Read-WinhostTasksState $account }
    }
}

function Read-WinhostTasksState {
    param([string]$Account)
    $jobs = Find-WinhostTask "jobs-$Account"
    $alive = Find-WinhostTask "keep-alive-$Account"
    $state = @{
        jobs = Read-WinhostJobsState $Account $jobs
        keep_alive = Read-WinhostTaskState $alive
        distro = Read-WinhostTaskDistro $alive
        program = Read-WinhostTaskProgram $alive
        logon = Read-WinhostTaskLogon $Account @($jobs, $alive)
    }
    $state
}

function Find-WinhostTasks {
    Read-WinhostCached 'tasks' { Find-WinhostScheduledTasks $script:WinhostTaskPath }
}

function Find-WinhostScheduledTasks {
    param([string]$Folder)
    # Lists only one folder: others contain hundreds of tasks, and some that not even an administrator can read.
    try {
        $tasks = @(Get-ScheduledTask -TaskPath $Folder -ErrorAction Stop)
    }
    catch {
        # The folder does not exist or is empty.
        if ("$($_.CategoryInfo.Category)" -ne 'ObjectNotFound') {
            throw
        }
        $tasks = @()
    }
    foreach ($task in $tasks) {
        if ($task.TaskPath -eq $Folder) {
            $task
        }
    }
}

function Register-WinhostStartTask {
    param([string]$Name, [string]$Arguments)
    # Registers a task with which the system account runs PowerShell whenever Windows starts.
    $program = "$(Read-WinhostSystemFolder)\WindowsPowerShell\v1.0\powershell.exe"
    $action = New-ScheduledTaskAction -Execute $program -Argument $Arguments -ErrorAction Stop
    $trigger = New-ScheduledTaskTrigger -AtStartup -ErrorAction Stop
    $principal = New-ScheduledTaskPrincipal -UserId 'S-1-5-18' -LogonType 'ServiceAccount' -RunLevel 'Highest' -ErrorAction Stop
    # A host on a UPS may report that it runs on batteries.
    $settings = New-ScheduledTaskSettingsSet -AllowStartIfOnBatteries -DontStopIfGoingOnBatteries -ErrorAction Stop
    Register-ScheduledTask -TaskName $Name -Action $action -Trigger $trigger -Principal $principal -Settings $settings -ErrorAction Stop
}

function Unregister-WinhostStartTask {
    param([string]$Name)
    # The tasks are listed and compared, because the cmdlets take a name as a pattern.
    foreach ($task in @(Find-WinhostScheduledTasks '\')) {
        if ($task.TaskName -ceq $Name) {
            Unregister-ScheduledTask -InputObject $task -Confirm:$false -ErrorAction Stop
        }
    }
}

function Find-WinhostTask {
    param([string]$Name)
    foreach ($task in @(Find-WinhostTasks)) {
        if (Test-WinhostText $task.TaskName $Name 'OrdinalIgnoreCase') {
            return $task
        }
    }
}

function Read-WinhostTaskState {
    param($Task)
    if ($null -eq $Task) {
        return 'absent'
    }
    # A running task counts as ready.
    if (@('Running', 'Queued') -contains "$($Task.State)") {
        return 'ready'
    }
    ConvertTo-WinhostKebab "$($Task.State)"
}

function Read-WinhostJobsState {
    param([string]$Account, $Task)
    $word = Read-WinhostTaskState $Task
    if ($word -eq 'ready' -and -not (Test-WinhostJobScript $Account)) {
        return 'stale'
    }
    $word
}

function Read-WinhostTaskDistro {
    param($Task)
    if ($null -ne $Task -and "$(@($Task.Actions)[0].Arguments)" -cmatch '^-d ([A-Za-z0-9._-]+) ') {
        return $Matches[1]
    }
    $null
}

function Read-WinhostTaskProgram {
    param($Task)
    if ($null -eq $Task) {
        return $null
    }
    "$(@($Task.Actions)[0].Execute)".Trim('"')
}

function Read-WinhostTaskLogon {
    param([string]$Account, $Tasks)
    foreach ($task in $Tasks) {
        if ($null -ne $task) {
            $logon = "$($task.Principal.LogonType)".ToLowerInvariant()
            if ($logon -eq 'password' -and -not (Test-WinhostTaskPassword $Account)) {
                return 'refused'
            }
            return $logon
        }
    }
    $null
}

function Test-WinhostTaskPassword {
    param([string]$Account)
    # The password of a task cannot be read: only a logon shows whether it is still valid.
    Read-WinhostCached "password of $Account" {
        $fits = $true
        foreach ($task in @(Find-WinhostJobsTask $Account)) {
            try {
                Complete-WinhostLogon $Account $task 60
            }
            catch {
                # Other failures do not concern the password. The callers that need a job report them.
                $fits = "$($_.FullyQualifiedErrorId)" -ne 'Winhost.PasswordChanged'
            }
        }
        $fits
    }
}

# ---- making and removing

function Set-WinhostAccountTasks {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('jobs', 'keep_alive', 'distro', 'logon')
    $account = "$($Key.account)"
    Assert-WinhostAccountName $account
    $now = Read-WinhostTasksState $account
    $goal = Read-WinhostTaskGoal $Desired $now
    Remove-WinhostTasks $account $goal
    if ($goal.jobs -eq 'absent' -and $goal.keep_alive -eq 'absent') {
        return
    }
    $user = Find-WinhostAccount $account
    if ($null -eq $user) {
        Stop-Winhost 'Winhost.NotFound' 'ObjectNotFound' "There is no account $account."
    }
    $holds = $goal.keep_alive -ne 'absent' -and ($goal.distro -ne $now.distro -or $goal.program -ne $now.program)
    $runs = $goal.jobs -ne 'absent' -and ($now.jobs -eq 'absent' -or -not (Test-WinhostJobScript $account))
    if ($holds -or $runs -or $goal.logon -ne $now.logon) {
        Register-WinhostTasks $user $goal
        if ($goal.jobs -eq 'ready') {
            # The first logon creates the profile, and proves that the account can log on.
            Complete-WinhostLogon $account (Find-WinhostTask "jobs-$account") (Read-WinhostTimeout $How 300)
        }
    }
    Switch-WinhostTask "jobs-$account" $goal.jobs
    Switch-WinhostTask "keep-alive-$account" $goal.keep_alive
}

function Read-WinhostTaskGoal {
    param($Desired, $Now)
    $words = @{
        jobs = @('Absent', 'Ready', 'Disabled')
        keep_alive = @('Absent', 'Ready', 'Disabled')
        logon = @('Password', 'S4u')
    }
    $goal = @{ jobs = $Now.jobs; keep_alive = $Now.keep_alive; distro = $Now.distro; logon = $Now.logon; program = $null }
    foreach ($property in @($Desired.PSObject.Properties)) {
        if ($words.ContainsKey($property.Name) -and $null -ne $property.Value) {
            $null = ConvertFrom-WinhostKebab $property.Value $words[$property.Name]
        }
        $goal[$property.Name] = $property.Value
    }
    if ($goal.keep_alive -eq 'absent' -and -not (Test-WinhostDesired $Desired 'distro')) {
        $goal.distro = $null
    }
    if ($goal.jobs -eq 'stale') {
        $goal.jobs = 'ready'
    }
    if ($null -eq $goal.logon -or $goal.logon -eq 'refused') {
        $goal.logon = 'password'
    }
    if ($null -eq $goal.jobs -or $null -eq $goal.keep_alive -or ($goal.keep_alive -eq 'absent') -ne ($null -eq $goal.distro)) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'There is a distro exactly where something keeps it alive.'
    }
    if ($null -ne $goal.distro) {
        if ("$($goal.distro)" -cnotmatch '^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\z') {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A distro of winhost has a name of letters, digits, dots and dashes, 64 at most.'
        }
        $goal.program = Read-WinhostWslProgram
    }
    $goal
}

function Read-WinhostWslProgram {
    # The wsl.exe in System32 is not used, because it fails if nobody is logged on.
    $folder = Read-WinhostWslRegistry 'InstallLocation'
    if ("$folder" -eq '') {
        $folder = 'C:\Program Files\WSL'
    }
    "$($folder.TrimEnd('\'))\wsl.exe"
}

function Remove-WinhostTasks {
    param([string]$Account, $Goal)
    foreach ($each in @(@('jobs', $Goal.jobs), @('keep-alive', $Goal.keep_alive))) {
        $task = Find-WinhostTask "$($each[0])-$Account"
        if ($each[1] -eq 'absent' -and $null -ne $task) {
            Stop-ScheduledTask -InputObject $task -ErrorAction Stop
            Unregister-ScheduledTask -InputObject $task -Confirm:$false -ErrorAction Stop
        }
    }
    if ($Goal.jobs -eq 'absent') {
        Remove-WinhostFolder (Read-WinhostJobFolder $Account)
        # Without the task, the VM that this record describes can no longer be read.
        Remove-WinhostFile (Join-WinhostVmRecordPath $Account)
    }
    $script:WinhostCache = @{}
}

function Register-WinhostTasks {
    param($User, $Goal)
    $secret = $null
    if ($Goal.jobs -ne 'absent') {
        # Before the password is changed: if this fails, the existing tasks can still log on.
        Write-WinhostJobScript $User
    }
    if ($Goal.logon -eq 'password') {
        # All tasks get a new password, so that no password needs to be stored.
        Assert-WinhostOwnAccount $User
        $secret = New-WinhostSecret
        Set-LocalUser -InputObject $User -Password $secret -Confirm:$false -ErrorAction Stop
    }
    $account = "$($User.Name)"
    if ($Goal.jobs -ne 'absent') {
        $script = "$(Read-WinhostJobFolder $account)\job.ps1"
        $task = @{
            name = "jobs-$account"
            program = "$(Read-WinhostSystemFolder)\WindowsPowerShell\v1.0\powershell.exe"
            arguments = "-NoProfile -NonInteractive -ExecutionPolicy Bypass -File `"$script`""
            trigger = 0
        }
        Register-WinhostAccountTask $task $account $secret
    }
    if ($Goal.keep_alive -ne 'absent') {
        $task = @{
            name = "keep-alive-$account"
            program = "`"$($Goal.program)`""
            arguments = "-d $($Goal.distro) -u root --cd / -e /bin/sh -c `"exec sleep infinity`""
            trigger = $script:WinhostAtStart
        }
        Register-WinhostAccountTask $task $account $secret
    }
    $script:WinhostCache = @{}
}

function Register-WinhostAccountTask {
    param($Task, [string]$Account, $Secret)
    # Register-ScheduledTask is not used: it takes the password as text, which module logging would record.
    $service = Open-WinhostScheduler
    $made = $service.NewTask(0)
    $made.RegistrationInfo.Description = 'Made by winhost.'
    # The task has the highest privileges of the account; in a user's session, the privileges of that session.
    $made.Principal.RunLevel = [int]($Task.trigger -ne $script:WinhostAtLogon)
    $made.Settings.ExecutionTimeLimit = 'PT0S'
    $made.Settings.MultipleInstances = 2
    $made.Settings.DisallowStartIfOnBatteries = $false
    $made.Settings.StopIfGoingOnBatteries = $false
    $made.Settings.StartWhenAvailable = $true
    $made.Settings.AllowDemandStart = $true
    if ($Task.trigger -ne 0) {
        $made.Settings.RestartCount = 255
        $made.Settings.RestartInterval = 'PT1M'
        $trigger = $made.Triggers.Create($Task.trigger)
        if ($Task.trigger -eq $script:WinhostAtLogon) {
            $trigger.UserId = $Account
        }
    }
    $action = $made.Actions.Create(0)
    $action.Path = $Task.program
    $action.Arguments = $Task.arguments
    # Only administrators and the system have access: others could disable a task, or add one under a name of winhost's.
    $rights = 'D:P(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)'
    $root = $service.GetFolder('\')
    $folder = $null
    foreach ($each in @($root.GetFolders(0))) {
        if ($each.Name -eq 'winhost') {
            $folder = $each
            $folder.SetSecurityDescriptor($rights, 0)
        }
    }
    if ($null -eq $folder) {
        $folder = $root.CreateFolder('winhost', $rights)
    }
    # 6: create or update; 1: log on with a password, 2: without one (S4U), 3: run in the session of the account.
    if ($null -eq $Secret) {
        $logon = @(2, 3)[[int]($Task.trigger -eq $script:WinhostAtLogon)]
        [void]$folder.RegisterTaskDefinition($Task.name, $made, 6, $Account, $null, $logon, $rights)
        return
    }
    $plain = [System.Runtime.InteropServices.Marshal]::SecureStringToBSTR($Secret)
    try {
        $text = [System.Runtime.InteropServices.Marshal]::PtrToStringBSTR($plain)
        [void]$folder.RegisterTaskDefinition($Task.name, $made, 6, $Account, $text, 1, $rights)
    }
    finally {
        [System.Runtime.InteropServices.Marshal]::ZeroFreeBSTR($plain)
    }
}

function Open-WinhostScheduler {
    $service = New-Object -ComObject 'Schedule.Service'
    $service.Connect()
    $service
}

function Switch-WinhostTask {
    param([string]$Name, [string]$Goal)
    $task = Find-WinhostTask $Name
    if ($null -eq $task) {
        return
    }
    $disabled = "$($task.State)" -eq 'Disabled'
    if ($Goal -eq 'disabled' -and "$($task.State)" -eq 'Running' -and $Name -like 'keep-alive-*') {
        Stop-ScheduledTask -InputObject $task -ErrorAction Stop
    }
    if ($Goal -eq 'disabled' -and -not $disabled) {
        $null = Disable-ScheduledTask -InputObject $task -ErrorAction Stop
    }
    if ($Goal -ne 'disabled' -and $disabled) {
        $null = Enable-ScheduledTask -InputObject $task -ErrorAction Stop
    }
}
