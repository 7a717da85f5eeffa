# key {}   state {user: text, administrator: bool, language_mode: text, powershell: text, is_64bit: bool, simulated: bool, peers: [address]}
function Get-WinhostSession {
    $state = @{
        user = Read-WinhostValue { [System.Security.Principal.WindowsIdentity]::GetCurrent().Name }
        administrator = Read-WinhostValue { Test-WinhostAdministrator }
        language_mode = "$($ExecutionContext.SessionState.LanguageMode)"
        powershell = "$($PSVersionTable.PSVersion)"
        is_64bit = Read-WinhostValue { [System.Environment]::Is64BitProcess }
        simulated = $false
        peers = Read-WinhostList { Find-WinhostPeers }
    }
    @{ key = @{}; state = $state }
}

function Find-WinhostPeers {
    $seen = @()
    foreach ($connection in @(Read-WinhostOnce 'sessions' { Find-WinhostSessions })) {
        # Without the zone, which says of a link-local address where it is.
        $address = "$($connection.RemoteAddress)".Split('%')[0]
        if ($seen -notcontains $address) {
            $seen += $address
        }
    }
    $seen
}

function Test-WinhostAdministrator {
    $identity = [System.Security.Principal.WindowsIdentity]::GetCurrent()
    $principal = New-Object -TypeName System.Security.Principal.WindowsPrincipal -ArgumentList $identity
    $principal.IsInRole([System.Security.Principal.WindowsBuiltInRole]::Administrator)
}
