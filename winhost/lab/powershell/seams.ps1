# Replaces the agent's helpers that use no cmdlets; the rest of the agent is the same as on a real host. Helpers that
# only pass on their parameters, or return a constant, are generated.

class LabRegistryKey {
    [string]$Path
    [hashtable]$Values
    [int]$ValueCount = 1
    [int]$SubKeyCount = 0
    [object] GetValue([string]$Name) {
        return $this.Values[$Name]
    }
    [string[]] GetValueNames() {
        return @($this.Values.Keys)
    }
    [void] SetValue([string]$Name, [object]$Data) {
        $null = Invoke-Lab 'Write-WinhostRegistry' @{ Path = $this.Path; Name = $Name; Value = $Data }
    }
    [void] DeleteValue([string]$Name, [bool]$MustBeThere) {
        $null = Invoke-Lab 'Write-WinhostRegistry' @{ Path = $this.Path; Name = $Name; Value = $null }
    }
    [void] Close() {
    }
}

class LabRegistry {
    [object] OpenSubKey([string]$Path) {
        foreach ($values in @(Read-Lab 'Open-WinhostRegistry' @{ Path = $Path })) {
            return [LabRegistryKey]@{ Path = $Path; Values = $values }
        }
        return $null
    }
    [object] CreateSubKey([string]$Path) {
        return [LabRegistryKey]@{ Path = $Path; Values = @{} }
    }
    [void] DeleteSubKey([string]$Path, [bool]$MustBeThere) {
    }
}

class LabMutex {
    [bool] WaitOne([int]$Milliseconds) {
        return [bool](Read-Lab 'Enter-WinhostMutex' @{})
    }
    [void] ReleaseMutex() {
        $null = Invoke-Lab 'Exit-WinhostMutex' @{}
    }
    [void] Dispose() {
    }
}

# A file that two processes write: replaces the stream of the real one with the lab's file.
class LabAnswer {
    [string]$Path
    [void] Seek([long]$Offset, [System.IO.SeekOrigin]$From) {
    }
    [void] CopyTo([System.IO.MemoryStream]$Memory) {
        foreach ($text in @(Read-Lab 'Read-WinhostBytes' @{ Path = $this.Path })) {
            $bytes = [System.Convert]::FromBase64String($text)
            $Memory.Write($bytes, 0, $bytes.Length)
        }
    }
    [void] Dispose() {
        $null = Invoke-Lab 'Remove-WinhostFile' @{ Path = $this.Path }
    }
}

# The parts of the Task Scheduler's COM interface that the agent uses.
class LabTaskFolder {
    [string]$Name = 'winhost'
    [object[]] GetFolders([int]$Flags) {
        return @()
    }
    [object] CreateFolder([string]$Path, [string]$Rights) {
        return $this
    }
    [object] RegisterTaskDefinition($Name, $Made, $Flags, $Account, $Secret, $Logon, $Rights) {
        $starts = @($Made.Triggers.Made)[0]
        $word = @{ 1 = 'password'; 2 = 's4u'; 3 = 'interactive' }[[int]$Logon]
        $task = @{ name = $Name; program = $Made.Actions.Made.Path; arguments = $Made.Actions.Made.Arguments; at_startup = $null -ne $starts -and $starts.Kind -eq 8; logon = $word }
        $null = Read-LabOrThrow 'Register-WinhostAccountTask' @{ Task = $task; Account = $Account; Secret = $Secret }
        return $null
    }
}

class LabTaskParts {
    [object]$Made
    [object] Create([int]$Kind) {
        $this.Made = [pscustomobject]@{ Kind = $Kind; UserId = ''; Path = ''; Arguments = '' }
        return $this.Made
    }
}

class LabScheduler {
    [object] NewTask([int]$Flags) {
        $settings = @{}
        foreach ($name in @('ExecutionTimeLimit', 'MultipleInstances', 'DisallowStartIfOnBatteries', 'StopIfGoingOnBatteries', 'StartWhenAvailable', 'AllowDemandStart', 'RestartCount', 'RestartInterval')) {
            $settings[$name] = $null
        }
        return [pscustomobject]@{
            RegistrationInfo = [pscustomobject]@{ Description = '' }
            Principal = [pscustomobject]@{ RunLevel = 0 }
            Settings = [pscustomobject]$settings
            Triggers = [LabTaskParts]::new()
            Actions = [LabTaskParts]::new()
        }
    }
    [object] GetFolder([string]$Path) {
        return [LabTaskFolder]::new()
    }
}

function Open-WinhostLocalMachine {
    [LabRegistry]::new()
}

function New-WinhostMutex {
    [LabMutex]::new()
}

function Open-WinhostScheduler {
    [LabScheduler]::new()
}

function Start-WinhostProgram {
    param([string]$Program, [string[]]$Arguments, [int]$Seconds)
    Read-Lab 'Invoke-WinhostNative' @{ Program = $Program; Arguments = $Arguments }
}

function Add-WinhostFolder {
    param([string]$Path, [string]$Rights)
}

function Write-WinhostFolderRights {
    param([string]$Path, [string]$Rights)
}

function Open-WinhostAnswerFile {
    param([string]$Path)
    Read-Lab 'Write-WinhostFile' @{ Path = $Path; Bytes = '' }
    [LabAnswer]@{ Path = $Path }
}

function Remove-WinhostEmptyFolder {
    param([string]$Path)
    -not (Read-Lab 'Test-WinhostFolder' @{ Path = $Path })
}

function Test-WinhostAdministrator {
    (Read-Lab 'Get-WinhostSession' @{}).administrator
}

# Language mode, version and width are those of this PowerShell; the user is the simulated machine's. This text runs
# after each part of the agent: the function may already be the one below, which must not call itself.
if ("${function:Get-WinhostSession}" -cnotlike '*Read-LabSession*') {
    ${function:Read-LabSession} = ${function:Get-WinhostSession}
}

function Get-WinhostSession {
    $found = Read-LabSession
    $found.state.user = (Read-Lab 'Get-WinhostSession' @{}).user
    $found.state.simulated = $true
    $found
}
