# Loads Winhost.ps1, which has all functions, if its hash is the one in SHA256SUMS. The file is kept open meanwhile, so that
# nobody can write to it between the check and the load. If the execution policy forbids scripts, the error says so.
# It is loaded by a relative path: in a whole path Windows PowerShell would take brackets for a wildcard.
$winhostPlace = $ExecutionContext.SessionState.Path
$winhostShared = [System.IO.Path]::Combine($PSScriptRoot, 'Winhost.ps1')
$winhostSums = [System.IO.Path]::Combine($PSScriptRoot, 'SHA256SUMS')
$winhostOpen, $winhostLoaded = $null, $false
$winhostPlace.PushCurrentLocation('winhost')
try {
    if ([System.IO.File]::Exists($winhostShared) -and [System.IO.File]::Exists($winhostSums)) {
        $winhostOpen = [System.IO.File]::Open($winhostShared, 'Open', 'Read', 'Read')
        $winhostHash = (New-Object -TypeName System.Security.Cryptography.SHA256CryptoServiceProvider).ComputeHash($winhostOpen)
        $winhostLine = "$([System.BitConverter]::ToString($winhostHash).Replace('-', '').ToLowerInvariant())  Winhost.ps1"
        if ([System.IO.File]::ReadAllLines($winhostSums) -ccontains $winhostLine) {
            $null = $winhostPlace.SetLocation([System.Management.Automation.WildcardPattern]::Escape($PSScriptRoot))
            . '.\Winhost.ps1'
            $winhostLoaded = $true
        }
    }
}
catch {
    $null = $winhostPlace.PopLocation('winhost')
    throw
}
finally {
    if ($null -ne $winhostOpen) {
        $winhostOpen.Dispose()
    }
}
if (-not $winhostLoaded) {
    $null = $winhostPlace.PopLocation('winhost')
    $winhostError = [ordered]@{ kind = 'Changed'; exit_code = 2; what = 'Winhost.ps1 is not as SHA256SUMS says, or one of them is missing'; meaning = 'It was changed, or lost, since the bundle was made. Nothing was done.'; hint = 'Copy the whole folder again, or make the bundle again.' }
    if ($PSBoundParameters['Json']) { # to a strict PowerShell, $Json is an error in Facts.ps1, which has no such parameter
        ConvertTo-Json -InputObject @{ error = $winhostError } -Compress -ErrorAction Stop
    }
    else {
        [System.Console]::Error.WriteLine("error: $($winhostError.what)`n  $($winhostError.meaning)`n  $($winhostError.hint)")
    }
    exit 2
}
