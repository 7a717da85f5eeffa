# Jobs, which an account's task runs one at a time, and the script of that task.

function Find-WinhostJobsTask {
    param([string]$Account)
    # Returns the task for jobs if it is enabled and its script and its account exist. A script of another version of
    # winhost is used as well, because most support the same jobs.
    $task = Find-WinhostTask "jobs-$Account"
    if ($null -eq $task -or "$($task.State)" -eq 'Disabled' -or (Test-WinhostDomainController)) {
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
    param([string]$Account, $Job, [int]$Seconds)
    # Runs a job as the account, in a batch logon, and returns @{ code; output; errors }. A job is @{ kind = 'wsl';
    # arguments; input = a file, or '' } for wsl.exe; 'write' with path and bytes as base64, null to remove the file;
    # 'clear' with the path of a folder. Files that the account can change are changed only as the account, which could
    # redirect other users with links.
    $task = Find-WinhostJobsTask $Account
    if ($null -eq $task) {
        $why = "$Account cannot run jobs on this host: their task does not exist or is disabled, or its script is missing."
        Stop-Winhost 'Winhost.Unavailable' 'ObjectNotFound' $why 'AccountTasks'
    }
    $Job.seconds = $Seconds
    try {
        $answer = Complete-WinhostJob $Account $task $Job ($Seconds + 60)
    }
    catch {
        # The resource that must be repaired before the account can run jobs again.
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
    if ($Job.kind -ne 'wsl' -and $answer.code -ne 0) {
        Stop-Winhost 'Winhost.JobFailed' 'InvalidResult' "$Account could not $($Job.kind) $($Job.path): $($answer.errors)"
    }
    @{ code = $answer.code; output = $answer.output; errors = $answer.errors }
}

function Complete-WinhostJob {
    param([string]$Account, $Task, $Job, [int]$Seconds)
    $id = [System.Guid]::NewGuid().ToString('N')
    $folder = Read-WinhostJobFolder $Account
    $begun = Read-WinhostClock
    $answer = $null
    try {
        # The job is written first, then the empty answer file, which marks the job as pending.
        Write-WinhostJson "$folder\job-$id.json" $Job
        $answer = Open-WinhostAnswerFile "$folder\answers\answer-$id.json"
        Start-ScheduledTask -InputObject $Task -ErrorAction Stop
        do {
            $text = Read-WinhostAnswerFile $answer
            if ($null -ne $text) {
                return ConvertFrom-Json -InputObject $text -ErrorAction Stop
            }
            Start-Sleep -Seconds 1 -ErrorAction Stop
            $waited = (Read-WinhostClock) - $begun
            if ($waited -ge 5) {
                # Before that, the result may still be that of the previous run.
                Resume-WinhostJobs $Account $Task
            }
        } while ($waited -lt $Seconds)
        Stop-Winhost 'Winhost.JobTimedOut' 'OperationTimeout' "The task for jobs of $Account did not answer within $Seconds s."
    }
    finally {
        # Without its answer file the job is not run any more, even if its own file remains.
        if ($null -ne $answer) {
            $answer.Dispose()
        }
        Invoke-WinhostBestEffort "$folder\job-$id.json could not be removed" { Remove-WinhostFile "$folder\job-$id.json" }
    }
}

function Resume-WinhostJobs {
    param([string]$Account, $Task)
    $result = (Get-ScheduledTaskInfo -InputObject $Task -ErrorAction Stop).LastTaskResult
    Assert-WinhostTaskLogon $Account $result
    # 0x41301: the task runs. Otherwise it ended just before this job was written, and is started again.
    if ($result -ne 267009) {
        Start-ScheduledTask -InputObject $Task -ErrorAction Stop
    }
}

function Assert-WinhostTaskLogon {
    param([string]$Account, $Result)
    # 0x80070569: the logon type is not granted; 0x8007052E: the password was changed; 0x80070533: the account is disabled.
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
    # Logs the account on with a job that does nothing.
    $job = @{ kind = 'nothing'; seconds = 0 }
    $null = Complete-WinhostJob $Account $Task $job $Seconds
}

function Read-WinhostJobFolder {
    param([string]$Account)
    "$(Read-WinhostDataFolder)\jobs\$Account"
}

# ---- the script that runs as the account

function Test-WinhostJobScript {
    param([string]$Account)
    # Tests whether the script is that of this version of winhost.
    Test-WinhostText (Read-WinhostJobScript $Account) "$script:WinhostJobScript".Replace("`r", '') 'Ordinal'
}

function Read-WinhostJobScript {
    param([string]$Account)
    $bytes = Read-WinhostFile "$(Read-WinhostJobFolder $Account)\job.ps1"
    if ($null -ne $bytes) {
        # Line ends depend on how this text was sent to the host.
        [System.Text.Encoding]::ASCII.GetString($bytes).Replace("`r", '')
    }
}

function Write-WinhostJobScript {
    param($User)
    Initialize-WinhostDataFolder 'jobs'
    $folder = Read-WinhostJobFolder "$($User.Name)"
    # The account cannot write to folders in which winhost writes or removes files: it could replace them by links.
    Initialize-WinhostFolder $folder 'read' "$($User.SID)"
    Initialize-WinhostFolder "$folder\answers" 'answered' "$($User.SID)"
    Write-WinhostFile "$folder\job.ps1" ([System.Text.Encoding]::ASCII.GetBytes("$script:WinhostJobScript"))
}

$script:WinhostJobScript = {
    # Runs the pending jobs in its folder one after another, and writes each result into the existing answer file. winhost
    # creates and removes both files.
    Set-StrictMode -Version 3.0
    $ErrorActionPreference = 'Stop'

    function Find-WinhostJobProgram {
        $folder = ''
        try {
            $machine = [Microsoft.Win32.RegistryKey]::OpenBaseKey('LocalMachine', 'Registry64')
            $key = $machine.OpenSubKey('SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI')
            if ($null -ne $key) {
                $folder = "$($key.GetValue('InstallLocation'))"
            }
        }
        catch [System.PlatformNotSupportedException] {
            # There is no registry: this is a rehearsal outside Windows.
            $folder = ''
        }
        if ($folder -eq '') {
            return 'C:\Program Files\WSL\wsl.exe'
        }
        "$($folder.TrimEnd('\'))\wsl.exe"
    }

    function ConvertTo-WinhostJobArgument {
        param([string]$Argument)
        # Quotes an argument in the way that C programs parse it: backslashes before a quote are doubled.
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
        # Otherwise the messages of wsl.exe itself would be UTF-16.
        $start.EnvironmentVariables['WSL_UTF8'] = '1'
        $process = [System.Diagnostics.Process]::Start($start)
        # Reads both streams at once: a program that fills one while this script waits for the other would hang.
        $output = $process.StandardOutput.ReadToEndAsync()
        $errors = $process.StandardError.ReadToEndAsync()
        $clock = [System.Diagnostics.Stopwatch]::StartNew()
        $sent = Send-WinhostJobInput $process $file ($Job.seconds * 1000)
        $remaining = [Math]::Max(0, $Job.seconds * 1000 - $clock.ElapsedMilliseconds)
        if (-not $sent -or -not $process.WaitForExit([int]$remaining)) {
            Stop-WinhostJobProgram $process
            return @{ code = -1; output = ''; errors = ''; timed_out = $true }
        }
        @{ code = $process.ExitCode; output = $output.Result; errors = $errors.Result; timed_out = $false }
    }

    function Send-WinhostJobInput {
        param($Process, $File, [int]$Milliseconds)
        # Returns whether all input was sent in time: a program that hangs reads no more than its pipe holds.
        $pipe = $Process.StandardInput.BaseStream
        try {
            if ($null -ne $File) {
                if (-not $File.CopyToAsync($pipe).Wait($Milliseconds)) {
                    return $false
                }
                $File.Dispose()
            }
            # Closes the stream and not its writer, which would write a byte order mark if the code page is UTF-8.
            $pipe.Close()
        }
        catch [System.AggregateException], [System.IO.IOException] {
            # The program ended without reading all its input; its exit code says why.
            $null = $_
        }
        $true
    }

    function Stop-WinhostJobProgram {
        param($Process)
        try {
            $Process.Kill()
        }
        catch [System.InvalidOperationException], [System.ComponentModel.Win32Exception] {
            # The program has just ended.
            $null = $_
        }
    }

    function Write-WinhostJobBytes {
        param([string]$Path, $Bytes)
        # Writes a temporary file and then replaces the file, so that readers see the old or the new file.
        if ($null -eq $Bytes) {
            [System.IO.File]::Delete($Path)
            return
        }
        $beside = "$Path.$([System.Guid]::NewGuid().ToString('N')).new"
        [System.IO.File]::WriteAllBytes($beside, [System.Convert]::FromBase64String($Bytes))
        if ([System.IO.File]::Exists($Path)) {
            [System.IO.File]::Replace($beside, $Path, [System.Management.Automation.Language.NullString]::Value)
        }
        else {
            [System.IO.File]::Move($beside, $Path)
        }
    }

    function Clear-WinhostJobFolder {
        param([string]$Path)
        foreach ($each in [System.IO.Directory]::GetFileSystemEntries($Path)) {
            $kind = [System.IO.File]::GetAttributes($each)
            if ($kind -band [System.IO.FileAttributes]::Directory) {
                # Of a link, only the link is deleted, not its target.
                [System.IO.Directory]::Delete($each, -not ($kind -band [System.IO.FileAttributes]::ReparsePoint))
            }
            else {
                [System.IO.File]::Delete($each)
            }
        }
    }

    function Complete-WinhostJobFile {
        param([string]$Path, [string]$Target)
        $answer = @{ code = 0; output = ''; errors = ''; timed_out = $false }
        try {
            $job = ConvertFrom-Json -InputObject ([System.IO.File]::ReadAllText($Path)) -ErrorAction Stop
            switch ($job.kind) {
                'wsl' {
                    $answer = Invoke-WinhostJobProgram $job
                }
                'write' {
                    Write-WinhostJobBytes $job.path $job.bytes
                }
                'clear' {
                    Clear-WinhostJobFolder $job.path
                }
            }
        }
        catch {
            $answer = @{ code = -1; output = ''; errors = "$($_.Exception.Message)"; timed_out = $false }
        }
        $json = ConvertTo-Json -InputObject $answer -Compress -ErrorAction Stop
        $bytes = (New-Object -TypeName System.Text.UTF8Encoding -ArgumentList $false).GetBytes("$json`n")
        # The answer file exists: this script cannot create files there.
        $stream = [System.IO.File]::Open($Target, 'Open', 'Write', 'ReadWrite,Delete')
        $stream.Write($bytes, 0, $bytes.Length)
        $stream.Dispose()
    }

    function Test-WinhostJobPending {
        param([string]$Target)
        # True if the answer file exists, so that winhost waits for it, and is still empty.
        [System.IO.File]::Exists($Target) -and (New-Object -TypeName System.IO.FileInfo -ArgumentList $Target).Length -eq 0
    }

    do {
        $done = 0
        foreach ($path in @([System.IO.Directory]::GetFiles($PSScriptRoot, 'job-*.json'))) {
            $name = [System.IO.Path]::GetFileName($path) -replace '^job-', 'answer-'
            $target = [System.IO.Path]::Combine($PSScriptRoot, 'answers', $name)
            if (Test-WinhostJobPending $target) {
                Complete-WinhostJobFile $path $target
                $done++
            }
        }
    } while ($done -gt 0)
}
