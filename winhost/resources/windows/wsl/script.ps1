# key {}   state {present: bool, version: text or null, package: sha256 or null}; set: version and package, null to uninstall what winhost installed
function Get-WinhostWsl {
    $state = @{
        # WslService belongs to the package, LxssManager to the WSL that is part of Windows.
        present = Read-WinhostValue { (Read-WinhostService 'WslService') -ne 'absent' -or (Read-WinhostService 'LxssManager') -ne 'absent' }
        version = Read-WinhostValue { Read-WinhostWslRegistry 'Version' }
        package = Read-WinhostValue { Read-WinhostWslPackage }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostWslRegistry {
    param([string]$Name)
    # The package writes these values. The output of wsl.exe is localized, and it does not run in every session.
    Read-WinhostRegistry 'SOFTWARE\Microsoft\Windows\CurrentVersion\Lxss\MSI' $Name
}

function Read-WinhostWslPackage {
    # Returns the package only if its version is still installed: WSL also updates itself.
    $installed = Read-WinhostWslRegistry 'Version'
    if ($null -ne $installed -and "$installed" -eq "$(Read-WinhostRegistry $script:WinhostRecordsKey 'wsl version')") {
        Read-WinhostRegistry $script:WinhostRecordsKey 'wsl package'
    }
}

function Set-WinhostWsl {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('version', 'package')
    Assert-WinhostAdministrator
    $version = Read-WinhostField $Desired 'version'
    $package = Read-WinhostField $Desired 'package'
    if ($null -eq $version -and $null -eq $package) {
        return Uninstall-WinhostWsl $Desired
    }
    if ("$package" -cnotmatch '^[0-9a-f]{64}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'package is the SHA-256 of a staged MSI.'
    }
    if (-not (Test-WinhostDesired $Desired 'version')) {
        $version = Read-WinhostWslRegistry 'Version'
    }
    if ("$version" -cnotmatch '^[0-9]{1,5}(\.[0-9]{1,5}){2,3}\z') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'version is three or four numbers with dots between them.'
    }
    Install-WinhostWsl "$version" "$package"
}

function Install-WinhostWsl {
    param([string]$Version, [string]$Package)
    $installed = Read-WinhostWslRegistry 'Version'
    if ($null -ne $installed -and (ConvertTo-WinhostVersion "$installed") -gt (ConvertTo-WinhostVersion $Version)) {
        Stop-Winhost 'Winhost.Downgrade' 'InvalidOperation' "WSL $installed is installed; winhost never goes back to $Version."
    }
    $path = Find-WinhostStagedFile $Package
    Assert-WinhostSignature $path
    $restart = Invoke-WinhostInstaller @('/i', $path)
    Write-WinhostRegistry $script:WinhostRecordsKey 'wsl version' "$(Read-WinhostWslRegistry 'Version')"
    Write-WinhostRegistry $script:WinhostRecordsKey 'wsl package' $Package
    if ($restart) {
        @{ restart = @(@{ system = 'host' }) }
    }
}

function ConvertTo-WinhostVersion {
    param([string]$Text)
    # Pads the version, because for .NET 2.6.1 is lower than 2.6.1.0.
    [version]($Text + '.0' * (4 - $Text.Split('.').Count))
}

function Uninstall-WinhostWsl {
    param($Desired)
    if (-not (Test-WinhostDesired $Desired 'version')) {
        return Clear-WinhostWsl
    }
    if ($null -eq (Read-WinhostWslPackage)) {
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' 'This WSL was not installed by winhost, which does not remove it.'
    }
    $product = "$(Read-WinhostWslRegistry 'ProductCode')"
    if ($product -notmatch '^\{[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}\}\z') {
        Stop-Winhost 'Winhost.InstallerFailed' 'InvalidData' "The installed WSL has the product code '$product', which is none."
    }
    $restart = Invoke-WinhostInstaller @('/x', $product)
    Clear-WinhostWsl
    if ($restart) {
        @{ restart = @(@{ system = 'host' }) }
    }
}

function Clear-WinhostWsl {
    foreach ($name in @('wsl version', 'wsl package')) {
        Write-WinhostRegistry $script:WinhostRecordsKey $name $null
    }
}

function Assert-WinhostSignature {
    param([string]$Path)
    $signature = Get-AuthenticodeSignature -LiteralPath $Path -ErrorAction Stop
    if ("$($signature.Status)" -ne 'Valid') {
        Stop-Winhost 'Winhost.BadSignature' 'SecurityError' "The signature of $Path is $($signature.Status)."
    }
    # Quoted parts are removed, because they may contain any text.
    $subject = "$($signature.SignerCertificate.Subject)"
    if (($subject -replace '"[^"]*"', '') -cnotmatch '(^|, )O=Microsoft Corporation(,|\z)') {
        Stop-Winhost 'Winhost.BadSignature' 'SecurityError' "$Path is signed by $subject, not by Microsoft Corporation."
    }
}

function Invoke-WinhostInstaller {
    param([string[]]$What)
    $ended = Invoke-WinhostNative 'msiexec.exe' ($What + @('/qn', '/norestart')) 1800
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.InstallerFailed' 'ObjectNotFound' 'There is no msiexec.exe.'
    }
    switch ($ended.code) {
        0 {
            return $false
        }
        1618 {
            $busy = 'Another installation is under way: wait until it has ended, then go on.'
            Stop-Winhost 'Winhost.InstallerBusy' 'ResourceBusy' $busy
        }
    }
    # 3010: a restart is required; 1641: a restart was initiated despite /norestart.
    if (@(3010, 1641) -contains $ended.code) {
        return $true
    }
    Stop-Winhost 'Winhost.InstallerFailed' 'InvalidResult' "msiexec.exe: $($ended.code)"
}
