# Put over the agent's few helpers that reach past cmdlets; everything else of the agent is what a real host runs.

class LabRegistryKey {
    [hashtable]$Values
    [object] GetValue([string]$Name) {
        return $this.Values[$Name]
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
