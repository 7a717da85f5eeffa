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
            # The zone of a link-local address is removed.
            $peers = @(foreach ($connection in @(Find-WinhostSessions)) { "$($connection.RemoteAddress)".Split('%')[0] })
            $peers | Sort-Object -Unique
        }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostExecutionPolicy {
    # Returns the policy of the computer for Windows PowerShell, which scheduled tasks use, independent of this process.
    $policies = 'SOFTWARE\Policies\Microsoft\Windows\PowerShell'
    $enabled = Read-WinhostRegistry $policies 'EnableScripts'
    if ($enabled -eq 0) {
        return 'restricted'
    }
    if ($enabled -eq 1) {
        $set = Read-WinhostRegistry $policies 'ExecutionPolicy'
        foreach ($policy in @('AllSigned', 'RemoteSigned', 'Unrestricted')) {
            # -eq ignores case.
            if ($set -eq $policy) {
                return ConvertTo-WinhostKebab $policy
            }
        }
        $set
    }
}
