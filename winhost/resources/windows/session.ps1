# key {}   state {user: text, administrator: bool, language_mode: text, powershell: text, is_64bit: bool, simulated: bool}
function Get-WinhostSession {
    $state = @{
        user = Read-WinhostValue { [System.Security.Principal.WindowsIdentity]::GetCurrent().Name }
        administrator = Read-WinhostValue { Test-WinhostAdministrator }
        language_mode = "$($ExecutionContext.SessionState.LanguageMode)"
        powershell = "$($PSVersionTable.PSVersion)"
        is_64bit = Read-WinhostValue { [System.Environment]::Is64BitProcess }
        simulated = $false
    }
    @{ key = @{}; state = $state }
}

function Test-WinhostAdministrator {
    $identity = [System.Security.Principal.WindowsIdentity]::GetCurrent()
    $principal = New-Object -TypeName System.Security.Principal.WindowsPrincipal -ArgumentList $identity
    $principal.IsInRole([System.Security.Principal.WindowsBuiltInRole]::Administrator)
}
