# Put over the agent's few helpers that reach past cmdlets; everything else of the agent is what a real host runs.

class LabRegistryKey {
    [hashtable]$Values
    [object] GetValue([string]$Name) {
        return $this.Values[$Name]
    }
    [string[]] GetValueNames() {
        return @($this.Values.Keys)
    }
    [void] Close() {
    }
}

class LabMutex {
    [void] ReleaseMutex() {
        $null = Invoke-Lab 'Exit-WinhostMutex' @{}
    }
    [void] Dispose() {
    }
}

function Open-WinhostRegistry {
    param([string]$Path)
    foreach ($values in @(Read-Lab 'Open-WinhostRegistry' @{ Path = $Path })) {
        $key = [LabRegistryKey]::new()
        $key.Values = $values
        $key
    }
}

function Invoke-WinhostNative {
    param([string]$Program, [string[]]$Arguments, [int]$Seconds)
    if ($script:WinhostPrograms -notcontains $Program) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Program is not among the programs that winhost runs."
    }
    Read-Lab 'Invoke-WinhostNative' @{ Program = $Program; Arguments = $Arguments }
}

function Read-WinhostFile {
    param([string]$Path)
    # As text on the way: a list of so many numbers takes long.
    foreach ($text in @(Read-Lab 'Read-WinhostFile' @{ Path = $Path })) {
        if ($text.link) {
            Stop-Winhost 'Winhost.NotAFile' 'InvalidType' "$Path is a link."
        }
        , [System.Convert]::FromBase64String($text.bytes)
    }
}

function Write-WinhostFile {
    param([string]$Path, [byte[]]$Bytes)
    $text = [System.Convert]::ToBase64String($Bytes)
    Read-Lab 'Write-WinhostFile' @{ Path = $Path; Bytes = $text }
}

function Remove-WinhostFile {
    param([string]$Path)
    Read-Lab 'Remove-WinhostFile' @{ Path = $Path }
}

function Initialize-WinhostFolder {
    param([string]$Path, [string]$Who)
    $answer = Invoke-Lab 'Initialize-WinhostFolder' @{ Path = $Path; Who = $Who }
    if ($null -ne $answer.fault) {
        throw (New-LabError $answer.fault)
    }
}

function Test-WinhostOwnFolder {
    param([string]$Path)
    Read-Lab 'Test-WinhostOwnFolder' @{ Path = $Path }
}

function Remove-WinhostFolder {
    param([string]$Path)
    Read-Lab 'Remove-WinhostFolder' @{ Path = $Path }
}

function Test-WinhostEmpty {
    param([string]$Path)
    Read-Lab 'Test-WinhostEmpty' @{ Path = $Path }
}

function Read-WinhostFileTime {
    param([string]$Path)
    Read-Lab 'Read-WinhostFileTime' @{ Path = $Path }
}

function Measure-WinhostFiles {
    param([string]$Folder, [string]$Name)
    Read-Lab 'Measure-WinhostFiles' @{ Folder = $Folder; Name = $Name }
}

function Write-WinhostRegistry {
    param([string]$Path, [string]$Name, $Value)
    Read-Lab 'Write-WinhostRegistry' @{ Path = $Path; Name = $Name; Value = $Value }
}

function Read-WinhostHash {
    param([string]$Path)
    Read-Lab 'Read-WinhostHash' @{ Path = $Path }
}

function Copy-WinhostSource {
    param([string]$Source, [string]$Path)
    $answer = Invoke-Lab 'Copy-WinhostSource' @{ Source = $Source; Path = $Path }
    if ($null -ne $answer.fault) {
        throw (New-LabError $answer.fault)
    }
    ConvertFrom-LabValue @($answer.objects)[0]
}

function Move-WinhostFile {
    param([string]$Path, [string]$Target)
    Read-Lab 'Move-WinhostFile' @{ Path = $Path; Target = $Target }
}

function Read-WinhostLength {
    param([string]$Path)
    Read-Lab 'Read-WinhostLength' @{ Path = $Path }
}

function Add-WinhostPiece {
    param([string]$Path, [bool]$Anew, [byte[]]$Bytes)
    Read-Lab 'Add-WinhostPiece' @{ Path = $Path; Anew = $Anew; Bytes = [System.Convert]::ToBase64String($Bytes) }
}

function Read-WinhostProgramData {
    'C:\ProgramData'
}

function Read-WinhostSystemFolder {
    'C:\Windows\System32'
}

function Read-WinhostTemporary {
    'C:\Windows\Temp'
}

function Read-WinhostGroup {
    param([string]$Sid)
    Read-Lab 'Read-WinhostGroup' @{ Sid = $Sid }
}

function Register-WinhostAccountTask {
    param($Task, [string]$Account, $Secret)
    $given = @{ Task = $Task; Account = $Account; Secret = $null }
    if ($null -ne $Secret) {
        $given.Secret = ConvertTo-LabValue $Secret
    }
    Read-Lab 'Register-WinhostAccountTask' $given
}

function Enter-WinhostMutex {
    do {
        $taken = Read-Lab 'Enter-WinhostMutex' @{}
    } until ($taken)
    [LabMutex]::new()
}

function Read-WinhostClock {
    Read-Lab 'Read-WinhostClock' @{}
}

function Test-WinhostAdministrator {
    (Read-Lab 'Get-WinhostSession' @{}).administrator
}

# The language mode, the engine's version and its width are the engine's own; who is logged on is the machine's.
${function:Read-LabSession} = ${function:Get-WinhostSession}

function Get-WinhostSession {
    $found = Read-LabSession
    $found.state.user = (Read-Lab 'Get-WinhostSession' @{}).user
    $found.state.simulated = $true
    $found
}
