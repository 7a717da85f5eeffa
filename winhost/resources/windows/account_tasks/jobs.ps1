# Jobs: one program at a time, run as the account by its task; and the script that the task runs.

function Find-WinhostJobsTask {
    param([string]$Account)
    # The task for jobs, if it is enabled and both its script and its account exist. A script of another winhost is
    # tried, too: most understand the same jobs.
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
    # arguments; input = a file, or '' } for wsl.exe; 'write' with path and bytes as base64, null for no such file;
    # 'clear' with the path of a folder. Only the account changes what it can change itself: it could lead anybody else
    # elsewhere.
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
        # The resource to mend before the account can run jobs again.
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
        # The job first, and then the empty answer, which says that it waits.
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
                # Until then the result may still be that of the run before.
                Resume-WinhostJobs $Account $Task
            }
        } while ($waited -lt $Seconds)
        Stop-Winhost 'Winhost.JobTimedOut' 'OperationTimeout' "The task for jobs of $Account did not answer within $Seconds s."
    }
    finally {
        # Without its answer nobody does the job any more, even if its file stays.
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
    # 0x41301: it runs. Otherwise it ended just before this job came, and is started again.
    if ($result -ne 267009) {
        Start-ScheduledTask -InputObject $Task -ErrorAction Stop
    }
}

function Assert-WinhostTaskLogon {
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
    # Logs the account on, by a job that does nothing.
    $job = @{ kind = 'nothing'; seconds = 0 }
    $null = Complete-WinhostJob $Account $Task $job $Seconds
}

function Read-WinhostJobFolder {
    param([string]$Account)
    "$(Read-WinhostDataFolder)\jobs\$Account"
}

# ---- what runs as the account

function Test-WinhostJobScript {
    param([string]$Account)
    # Tells whether the script is the one of this version.
    Test-WinhostText (Read-WinhostJobScript $Account) "$script:WinhostJobScript".Replace("`r", '') 'Ordinal'
}

function Read-WinhostJobScript {
    param([string]$Account)
    $bytes = Read-WinhostFile "$(Read-WinhostJobFolder $Account)\job.ps1"
    if ($null -ne $bytes) {
        # Lines end as they did on the way to this host.
        [System.Text.Encoding]::ASCII.GetString($bytes).Replace("`r", '')
    }
}

function Write-WinhostJobScript {
    param($User)
    Initialize-WinhostDataFolder 'jobs'
    $folder = Read-WinhostJobFolder "$($User.Name)"
    # The account writes into no folder that we write or remove anything in: it could turn one into a link elsewhere.
    Initialize-WinhostFolder $folder 'read' "$($User.SID)"
    Initialize-WinhostFolder "$folder\answers" 'answered' "$($User.SID)"
    Write-WinhostFile "$folder\job.ps1" ([System.Text.Encoding]::ASCII.GetBytes("$script:WinhostJobScript"))
}

$script:WinhostJobScript = {
    # Does the jobs in its folder, one after the other, and writes into the answer that waits for each. Others make and
    # remove both.
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
            # No Windows, so no registry: a rehearsal.
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
        $clock = [System.Diagnostics.Stopwatch]::StartNew()
        $given = Send-WinhostJobInput $process $file ($Job.seconds * 1000)
        $left = [Math]::Max(0, $Job.seconds * 1000 - $clock.ElapsedMilliseconds)
        if (-not $given -or -not $process.WaitForExit([int]$left)) {
            Stop-WinhostJobProgram $process
            return @{ code = -1; output = ''; errors = ''; timed_out = $true }
        }
        @{ code = $process.ExitCode; output = $output.Result; errors = $errors.Result; timed_out = $false }
    }

    function Send-WinhostJobInput {
        param($Process, $File, [int]$Milliseconds)
        # Whether that ended: a program that hangs takes no more than its pipe holds.
        $pipe = $Process.StandardInput.BaseStream
        try {
            if ($null -ne $File) {
                if (-not $File.CopyToAsync($pipe).Wait($Milliseconds)) {
                    return $false
                }
                $File.Dispose()
            }
            # Not the writer over it: where the code page is UTF-8, closing that writes a byte order mark first.
            $pipe.Close()
        }
        catch [System.AggregateException], [System.IO.IOException] {
            # It ended without reading all of it; its code says why.
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
            # It has just ended by itself.
            $null = $_
        }
    }

    function Write-WinhostJobBytes {
        param([string]$Path, $Bytes)
        # Beside it, then over it: whoever reads meanwhile sees the one or the other.
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
                # Of a link the link, and nothing of where it leads.
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
        # It is there already, and waits: nothing is made here.
        $stream = [System.IO.File]::Open($Target, 'Open', 'Write', 'ReadWrite,Delete')
        $stream.Write($bytes, 0, $bytes.Length)
        $stream.Dispose()
    }

    function Test-WinhostJobPending {
        param([string]$Target)
        # What has no answer yet, and still somebody who waits for one.
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
