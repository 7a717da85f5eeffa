# Programs of Windows that winhost runs, and tests for commands and services.
$script:WinhostPrograms = @('bcdedit.exe', 'curl.exe', 'msiexec.exe', 'netsh.exe', 'nvidia-smi.exe', 'OpenSSH\ssh-keygen.exe', 'powercfg.exe', 'secedit.exe', 'shutdown.exe')

function Join-WinhostArguments {
    param([string[]]$Arguments)
    # Quotes arguments in the way that programs parse a command line: quotes surround arguments that are empty or contain
    # blanks, and backslashes before a quote are doubled.
    $quoted = @(foreach ($argument in $Arguments) {
        $text = $argument -replace '(\\*)"', '$1$1\"'
        if ($text -eq '' -or $text -match '[ \t]') {
            $text = '"' + ($text -replace '(\\+)\z', '$1$1') + '"'
        }
        $text
    })
    $quoted -join ' '
}

function Invoke-WinhostNative {
    param([string]$Program, [string[]]$Arguments, [int]$Seconds)
    if ($script:WinhostPrograms -notcontains $Program) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Program is not among the programs that winhost runs."
    }
    Start-WinhostProgram $Program $Arguments $Seconds
}

function Invoke-WinhostProgram {
    param([string]$Program, [string[]]$Arguments, [string]$Code)
    # Runs a program and returns its output. A program that is missing or fails is an error with this code.
    $ended = Invoke-WinhostNative $Program $Arguments 120
    if ($null -eq $ended) {
        Stop-Winhost $Code 'ObjectNotFound' "This Windows has no $Program."
    }
    if ($ended.code -ne 0) {
        $output = ("$($ended.output) $($ended.errors)" -replace '\s+', ' ').Trim()
        Stop-Winhost $Code 'InvalidResult' "${Program}: $($ended.code) $output"
    }
    $ended.output
}

function Start-WinhostProgram {
    param([string]$Program, [string[]]$Arguments, [int]$Seconds)
    $path = [System.IO.Path]::Combine((Read-WinhostSystemFolder), $Program)
    if ($null -eq (Read-WinhostAttributes $path)) {
        return $null
    }
    $start = New-Object -TypeName System.Diagnostics.ProcessStartInfo
    $start.FileName = $path
    $start.Arguments = Join-WinhostArguments $Arguments
    $start.UseShellExecute = $false
    $start.CreateNoWindow = $true
    $start.RedirectStandardOutput = $true
    $start.RedirectStandardError = $true
    $process = [System.Diagnostics.Process]::Start($start)
    # Reads both streams at once: a program that fills one while this process waits for the other would hang.
    $output = $process.StandardOutput.ReadToEndAsync()
    $errors = $process.StandardError.ReadToEndAsync()
    if (-not $process.WaitForExit($Seconds * 1000)) {
        try {
            $process.Kill()
        }
        catch {
            # The program has just ended.
            $null = $_
        }
        Stop-Winhost 'Winhost.ProgramTimedOut' 'OperationTimeout' "$Program did not end within $Seconds s."
    }
    @{ code = $process.ExitCode; output = $output.Result; errors = $errors.Result }
}

function Test-WinhostCommand {
    param([string]$Name)
    $null -ne (Get-Command -Name $Name -ErrorAction Ignore)
}

function Read-WinhostService {
    param([string]$Name)
    foreach ($service in @(Read-WinhostOptional 'NoServiceFoundForGivenName,*' { Get-Service -Name $Name -ErrorAction Stop })) {
        return ConvertTo-WinhostKebab "$($service.Status)"
    }
    'absent'
}
