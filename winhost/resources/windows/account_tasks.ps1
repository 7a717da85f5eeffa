# key {account}   state {jobs: absent | ready | disabled | stale, keep_alive: absent | ready | disabled, distro: text or null, program: text or null, logon: password | s4u | refused or null}; how {within: seconds}
$script:WinhostTaskPath = '\winhost\'

function Get-WinhostAccountTasks {
    param($Key)
    Assert-WinhostAdministrator
    $accounts = @{}
    foreach ($task in @(Find-WinhostTasks)) {
        if ($task.TaskName -match '^(jobs|keep-alive)-(.+)$') {
            $accounts[$Matches[2]] = $true
        }
    }
    foreach ($account in @($accounts.Keys)) {
        @{ key = @{ account = $account }; state = Read-WinhostTasksOf $account }
    }
    if ($null -ne $Key) {
        $account = "$(Read-WinhostField $Key 'account')"
        @{ key = @{ account = $account }; state = Read-WinhostTasksOf $account }
    }
}

function Read-WinhostTasksOf {
    param([string]$Account)
    $jobs = Find-WinhostTask "jobs-$Account"
    $alive = Find-WinhostTask "keep-alive-$Account"
    $state = @{
        jobs = Read-WinhostJobsWord $Account $jobs
        keep_alive = Read-WinhostTaskWord $alive
        distro = Read-WinhostTaskDistro $alive
        program = Read-WinhostTaskProgram $alive
        logon = Read-WinhostTaskLogon $Account @($jobs, $alive)
    }
    $state
}

function Find-WinhostTasks {
    foreach ($task in @(Read-WinhostOnce 'tasks' { Get-ScheduledTask -ErrorAction Stop })) {
        if ($task.TaskPath -eq $script:WinhostTaskPath) {
            $task
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

function Read-WinhostTaskWord {
    param($Task)
    if ($null -eq $Task) {
        return 'absent'
    }
    # Whether it runs just now is another question.
    if (@('Running', 'Queued') -contains "$($Task.State)") {
        return 'ready'
    }
    ConvertTo-WinhostWord "$($Task.State)"
}

function Read-WinhostJobsWord {
    param([string]$Account, $Task)
    $word = Read-WinhostTaskWord $Task
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
    # Nobody can ask for the password that a task has: it takes a logon to see whether that still is the account's.
    Read-WinhostOnce "password of $Account" {
        $fits = $true
        foreach ($task in @(Find-WinhostJobsTask $Account)) {
            try {
                Complete-WinhostLogon $Account $task 60
            }
            catch {
                # Other trouble is not that of the password, and whoever needs a job is told of it.
                $fits = "$($_.FullyQualifiedErrorId)" -ne 'Winhost.PasswordChanged'
            }
        }
        $fits
    }
}

# ---- jobs: one program at a time, as the account

function Find-WinhostJobsTask {
    param([string]$Account)
    # Where it may run, has something to run, and there still is somebody to run as. The script of another winhost is
    # tried: most understand the same jobs.
    $task = Find-WinhostTask "jobs-$Account"
    if ($null -eq $task -or "$($task.State)" -eq 'Disabled' -or (Test-WinhostController)) {
        return
    }
    if ($null -eq (Read-WinhostJobScript $Account)) {
        return
    }
    if ($null -ne (Find-WinhostAccount $Account)) {
        $task
    }
}

function Invoke-WinhostJob {
    param([string]$Account, [string[]]$Arguments, [string]$InputFile, [int]$Seconds)
    # wsl.exe as the account, in the session of a batch logon: @{ code; output; errors }. InputFile: '' for none.
    $task = Find-WinhostJobsTask $Account
    if ($null -eq $task) {
        $why = "$Account cannot run anything here: there is no task for its jobs, it is disabled, or its script is gone."
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' $why 'AccountTasks'
    }
    $job = @{ kind = 'wsl'; arguments = @($Arguments); input = $InputFile; seconds = $Seconds }
    try {
        $answer = Complete-WinhostJob $Account $task $job ($Seconds + 60)
    }
    catch {
        # What has to be mended before anything can be asked again.
        $mends = @{
            'Winhost.NoBatchRight' = 'AccountRight'
            'Winhost.PasswordChanged' = 'AccountTasks'
            'Winhost.AccountDisabled' = 'LocalAccount'
        }
        $code = "$($_.FullyQualifiedErrorId)"
        if ($mends.ContainsKey($code)) {
            Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' "$($_.Exception.Message)" $mends[$code]
        }
        throw
    }
    if ($answer.timed_out) {
        Stop-Winhost 'Winhost.ProgramTimedOut' 'OperationTimeout' "wsl.exe did not end within $Seconds s."
    }
    @{ code = $answer.code; output = $answer.output; errors = $answer.errors }
}

function Complete-WinhostJob {
    param([string]$Account, $Task, $Job, [int]$Seconds)
    $id = [System.Guid]::NewGuid().ToString('N')
    $folder = Read-WinhostJobFolder $Account
    $json = ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $Job -Depth 5 -Compress -ErrorAction Stop)
    Write-WinhostFile "$folder\job-$id.json" ([System.Text.Encoding]::ASCII.GetBytes($json))
    $begun = Read-WinhostClock
    try {
        Start-ScheduledTask -InputObject $Task -ErrorAction Stop
        do {
            $bytes = Read-WinhostFile "$folder\answer-$id.json"
            if ($null -ne $bytes) {
                return ConvertFrom-Json -InputObject ([System.Text.Encoding]::UTF8.GetString($bytes)) -ErrorAction Stop
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
            $waited = (Read-WinhostClock) - $begun
            if ($waited -ge 5) {
                # Until then the result may still be that of the run before.
                Resume-WinhostJobs $Account $Task
            }
        } while ($waited -lt $Seconds)
        Stop-Winhost 'Winhost.JobTimedOut' 'OperationTimeout' "The task for jobs of $Account did not answer within $Seconds s."
    }
    finally {
        Remove-WinhostFile "$folder\job-$id.json"
        Remove-WinhostFile "$folder\answer-$id.json"
    }
}

function Resume-WinhostJobs {
    param([string]$Account, $Task)
    $result = (Get-ScheduledTaskInfo -InputObject $Task -ErrorAction Stop).LastTaskResult
    Assert-WinhostLogon $Account $result
    # 0x41301: it runs. Otherwise it had looked for jobs, of somebody else, just before this one came.
    if ($result -ne 267009) {
        Start-ScheduledTask -InputObject $Task -ErrorAction Stop
    }
}

function Assert-WinhostLogon {
    param([string]$Account, $Result)
    # 0x80070569: the logon type is not granted; 0x8007052E: the password is another one by now; 0x80070533: disabled.
    if ($Result -eq 2147943785) {
        $why = "$Account may not log on as a batch job: right SeBatchLogonRight is missing or denied."
        Stop-Winhost 'Winhost.NoBatchRight' 'PermissionDenied' $why
    }
    if ($Result -eq 2147943726) {
        $why = "The password of $Account was changed: its tasks cannot log on any more."
        Stop-Winhost 'Winhost.PasswordChanged' 'AuthenticationError' $why
    }
    if ($Result -eq 2147943731) {
        $why = "The account $Account was disabled: its tasks cannot log on any more."
        Stop-Winhost 'Winhost.AccountDisabled' 'PermissionDenied' $why
    }
}

function Complete-WinhostLogon {
    param([string]$Account, $Task, [int]$Seconds)
    # A job that runs nothing.
    $job = @{ kind = 'nothing'; arguments = @(); input = ''; seconds = 0 }
    $null = Complete-WinhostJob $Account $Task $job $Seconds
}

function Read-WinhostJobFolder {
    param([string]$Account)
    "$(Read-WinhostProgramData)\winhost\accounts\$Account"
}

# ---- making and removing

function Set-WinhostAccountTasks {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('jobs', 'keep_alive', 'distro', 'logon')
    $account = "$($Key.account)"
    Assert-WinhostAccountName $account
    $now = Read-WinhostTasksOf $account
    $goal = Read-WinhostTaskGoal $Want $now
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
            # The first logon makes the profile, and shows that the account can log on like this at all.
            Complete-WinhostFirstJob $account $How
        }
    }
    Switch-WinhostTask "jobs-$account" $goal.jobs
    Switch-WinhostTask "keep-alive-$account" $goal.keep_alive
}

function Read-WinhostTaskGoal {
    param($Want, $Now)
    $words = @{
        jobs = @('Absent', 'Ready', 'Disabled')
        keep_alive = @('Absent', 'Ready', 'Disabled')
        logon = @('Password', 'S4u')
    }
    $goal = @{ jobs = $Now.jobs; keep_alive = $Now.keep_alive; distro = $Now.distro; logon = $Now.logon; program = $null }
    foreach ($property in @($Want.PSObject.Properties)) {
        if ($words.ContainsKey($property.Name) -and $null -ne $property.Value) {
            $null = ConvertFrom-WinhostWord $property.Value $words[$property.Name]
        }
        $goal[$property.Name] = $property.Value
    }
    if ($goal.keep_alive -eq 'absent' -and -not (Test-WinhostWanted $Want 'distro')) {
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
    # Not the one in System32, which fails where nobody is logged on.
    $folder = Read-WinhostRegistry 'SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI' 'InstallLocation'
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
        # Of a VM that nobody can ask about any more.
        Remove-WinhostFile (Join-WinhostVmRecord $Account)
    }
    $script:WinhostOnce = @{}
}

function Register-WinhostTasks {
    param($User, $Goal)
    $secret = $null
    if ($Goal.jobs -ne 'absent') {
        # First, for it may be refused; with another password the tasks that are there would not log on any more.
        Write-WinhostJobScript $User
    }
    if ($Goal.logon -eq 'password') {
        # All of them with a new one, so that nobody ever has to keep it.
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
            at_startup = $false
        }
        Register-WinhostAccountTask $task $account $secret
    }
    if ($Goal.keep_alive -ne 'absent') {
        $task = @{
            name = "keep-alive-$account"
            program = "`"$($Goal.program)`""
            arguments = "-d $($Goal.distro) -u root --cd / -e /bin/sh -c `"exec sleep infinity`""
            at_startup = $true
        }
        Register-WinhostAccountTask $task $account $secret
    }
    $script:WinhostOnce = @{}
}

function Register-WinhostAccountTask {
    param($Task, [string]$Account, $Secret)
    # Not by Register-ScheduledTask: it takes the secret as text, and logging of modules would write that down.
    $service = New-Object -ComObject 'Schedule.Service'
    $service.Connect()
    $made = $service.NewTask(0)
    $made.RegistrationInfo.Description = 'Made by winhost.'
    $made.Principal.RunLevel = 1
    $made.Settings.ExecutionTimeLimit = 'PT0S'
    $made.Settings.MultipleInstances = 2
    $made.Settings.DisallowStartIfOnBatteries = $false
    $made.Settings.StopIfGoingOnBatteries = $false
    $made.Settings.StartWhenAvailable = $true
    $made.Settings.AllowDemandStart = $true
    if ($Task.at_startup) {
        $made.Settings.RestartCount = 255
        $made.Settings.RestartInterval = 'PT1M'
        # 8: when Windows starts.
        [void]$made.Triggers.Create(8)
    }
    $action = $made.Actions.Create(0)
    $action.Path = $Task.program
    $action.Arguments = $Task.arguments
    # For administrators and the system: others could disable a task, or put one of theirs beside it under a name of ours.
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
    # 6: made or changed; 1: logs on with a password, 2: without one (S4U).
    if ($null -eq $Secret) {
        [void]$folder.RegisterTaskDefinition($Task.name, $made, 6, $Account, $null, 2, $rights)
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

function Complete-WinhostFirstJob {
    param([string]$Account, $How)
    $within = Read-WinhostField $How 'within'
    if ($null -eq $within) {
        $within = 300
    }
    Complete-WinhostLogon $Account (Find-WinhostTask "jobs-$Account") $within
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

# ---- what runs as the account

function Test-WinhostJobScript {
    param([string]$Account)
    # Whether it is ours, of this version.
    Test-WinhostText (Read-WinhostJobScript $Account) "$script:WinhostJobScript".Replace("`r", '') 'Ordinal'
}

function Read-WinhostJobScript {
    param([string]$Account)
    $bytes = Read-WinhostFile "$(Read-WinhostJobFolder $Account)\job.ps1"
    if ($null -ne $bytes) {
        # Lines end as they did on the way here.
        [System.Text.Encoding]::ASCII.GetString($bytes).Replace("`r", '')
    }
}

function Write-WinhostJobScript {
    param($User)
    $data = "$(Read-WinhostProgramData)\winhost"
    Initialize-WinhostFolder $data ''
    Initialize-WinhostFolder "$data\accounts" ''
    $folder = Read-WinhostJobFolder "$($User.Name)"
    Initialize-WinhostFolder $folder "$($User.SID)"
    Write-WinhostFile "$folder\job.ps1" ([System.Text.Encoding]::ASCII.GetBytes("$script:WinhostJobScript"))
}

$script:WinhostJobScript = {
    # Runs the jobs in its folder, one after the other: wsl.exe with the arguments given, or nothing at all.
    Set-StrictMode -Version 3.0
    $ErrorActionPreference = 'Stop'

    function Find-WinhostJobProgram {
        $folder = ''
        try {
            $machine = [Microsoft.Win32.RegistryKey]::OpenBaseKey('LocalMachine', 'Registry64')
            $folder = "$($machine.OpenSubKey('SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI').GetValue('InstallLocation'))"
        }
        catch {
            # Not installed from its package, or not there: then this is where it would be.
            $folder = ''
        }
        if ($folder -eq '') {
            return 'C:\Program Files\WSL\wsl.exe'
        }
        "$($folder.TrimEnd('\'))\wsl.exe"
    }

    function ConvertTo-WinhostJobArgument {
        param([string]$Argument)
        # As C programs take them apart: a quote after a backslash, and a backslash before the last quote, are doubled.
        '"' + (($Argument -replace '(\\*)"', '$1$1\"') -replace '(\\+)$', '$1$1') + '"'
    }

    function Invoke-WinhostJobProgram {
        param($Job)
        $file = $null
        if ("$($Job.input)" -ne '') {
            $file = [System.IO.File]::OpenRead($Job.input)
        }
        $start = New-Object -TypeName System.Diagnostics.ProcessStartInfo
        $start.FileName = Find-WinhostJobProgram
        $start.Arguments = @(foreach ($argument in $Job.arguments) { ConvertTo-WinhostJobArgument $argument }) -join ' '
        $start.UseShellExecute = $false
        $start.CreateNoWindow = $true
        $start.RedirectStandardInput = $true
        $start.RedirectStandardOutput = $true
        $start.RedirectStandardError = $true
        $start.StandardOutputEncoding = New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false
        $start.StandardErrorEncoding = $start.StandardOutputEncoding
        # Or its own messages would be UTF-16.
        $start.EnvironmentVariables['WSL_UTF8'] = '1'
        $process = [System.Diagnostics.Process]::Start($start)
        # Both streams at once: a program that fills one while we wait for the other would hang.
        $output = $process.StandardOutput.ReadToEndAsync()
        $errors = $process.StandardError.ReadToEndAsync()
        Send-WinhostJobInput $process $file
        $timedOut = -not $process.WaitForExit($Job.seconds * 1000)
        if ($timedOut) {
            $process.Kill()
            return @{ code = -1; output = ''; errors = ''; timed_out = $true }
        }
        @{ code = $process.ExitCode; output = $output.Result; errors = $errors.Result; timed_out = $false }
    }

    function Send-WinhostJobInput {
        param($Process, $File)
        try {
            if ($null -ne $File) {
                $File.CopyTo($Process.StandardInput.BaseStream)
                $File.Dispose()
            }
            # Not the writer over it: where the code page is UTF-8, closing that writes a byte order mark first.
            $Process.StandardInput.BaseStream.Close()
        }
        catch [System.IO.IOException] {
            # It ended without reading all of it; its code says why.
            $null = $_
        }
    }

    function Complete-WinhostJobFile {
        param([string]$Path)
        $answer = @{ code = 0; output = ''; errors = ''; timed_out = $false }
        try {
            $job = ConvertFrom-Json -InputObject ([System.IO.File]::ReadAllText($Path)) -ErrorAction Stop
            if ($job.kind -eq 'wsl') {
                $answer = Invoke-WinhostJobProgram $job
            }
        }
        catch {
            $answer = @{ code = -1; output = ''; errors = "$($_.Exception.Message)"; timed_out = $false }
        }
        $json = ConvertTo-Json -InputObject $answer -Compress -ErrorAction Stop
        $target = $Path -replace 'job-([0-9a-f]+)\.json$', 'answer-$1.json'
        [System.IO.File]::WriteAllText("$target.new", $json)
        [System.IO.File]::Delete($Path)
        [System.IO.File]::Move("$target.new", $target)
    }

    do {
        $paths = @([System.IO.Directory]::GetFiles($PSScriptRoot, 'job-*.json'))
        foreach ($path in $paths) {
            Complete-WinhostJobFile $path
        }
    } while ($paths.Count -gt 0)
}
