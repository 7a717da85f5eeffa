# key {}   state {user: text, administrator: bool, language_mode: text, powershell: text, is_64bit: bool, execution_policy: text or null, simulated: bool, peers: [address]}
function Get-WinhostSession {
    $state = @{
        user = Read-WinhostValue { [System.Security.Principal.WindowsIdentity]::GetCurrent().Name }
        administrator = Read-WinhostValue { Test-WinhostAdministrator }
        language_mode = "$($ExecutionContext.SessionState.LanguageMode)"
        powershell = "$($PSVersionTable.PSVersion)"
        is_64bit = Read-WinhostValue { [System.Environment]::Is64BitProcess }
        execution_policy = Read-WinhostValue { Read-WinhostExecutionPolicy }
        simulated = $false
        peers = Read-WinhostList {
            # Without the zone, which says of a link-local address where it is.
            $peers = @(foreach ($connection in @(Find-WinhostSessions)) { "$($connection.RemoteAddress)".Split('%')[0] })
            $peers | Sort-Object -Unique
        }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostExecutionPolicy {
    # Of the computer, and of the Windows PowerShell that scheduled tasks start, whatever this process is.
    $policies = 'SOFTWARE\Policies\Microsoft\Windows\PowerShell'
    $enabled = Read-WinhostRegistry $policies 'EnableScripts'
    if ($enabled -eq 0) {
        return 'restricted'
    }
    if ($enabled -eq 1) {
        $set = Read-WinhostRegistry $policies 'ExecutionPolicy'
        foreach ($policy in @('AllSigned', 'RemoteSigned', 'Unrestricted')) {
            # In any case of letters.
            if ($set -eq $policy) {
                return ConvertTo-WinhostKebab $policy
            }
        }
        $set
    }
}
