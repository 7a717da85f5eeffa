# key {account, right}   state {granted: bool}
$script:WinhostRights = @('SeBatchLogonRight', 'SeServiceLogonRight', 'SeDenyBatchLogonRight')

function Get-WinhostAccountRight {
    param($Key)
    Assert-WinhostAdministrator
    $names = Read-WinhostHolderNames
    $granted = @{}
    $rights = @(Read-WinhostCached 'rights' { Read-WinhostRights })[0]
    foreach ($right in $script:WinhostRights) {
        # $rights has no entry for a right that nobody holds.
        foreach ($holder in $rights[$right]) {
            # Local accounts are listed by name, all others by SID.
            $account = $holder.TrimStart('*')
            if ($names.ContainsKey($holder)) {
                $account = $names[$holder]
            }
            $granted["$right $account"] = $true
            @{ key = @{ account = $account; right = $right }; state = @{ granted = $true } }
        }
    }
    if ($null -ne $Key) {
        Assert-WinhostPart 'Read-WinhostRightState'
        Read-WinhostRightState $Key $names $granted
    }
}

function Read-WinhostRightState {
    param($Key, $Names, $Granted)
    $parts = @{ account = "$(Read-WinhostField $Key 'account')"; right = "$(Read-WinhostField $Key 'right')" }
    $account = $parts.account
    if ($Names.ContainsKey("*$account")) {
        # The key may also name a local account by its SID.
        $account = $Names["*$account"]
    }
    @{ key = $parts; state = @{ granted = $Granted.ContainsKey("$($parts.right) $account") } }
}

function Read-WinhostHolderNames {
    # Returns the names of local accounts, by their form in a security policy (*SID).
    $names = @{}
    if (-not (Test-WinhostDomainController)) {
        foreach ($user in @(Find-WinhostAccounts)) {
            $names["*$($user.SID)"] = "$($user.Name)"
        }
    }
    $names
}

function Read-WinhostRights {
    # Uses secedit.exe, because there is no cmdlet. Its output is not localized.
    $path = "$(Read-WinhostTemporaryFolder)\winhost-$([System.Guid]::NewGuid().ToString('N')).inf"
    try {
        $null = Invoke-WinhostProgram 'secedit.exe' @('/export', '/cfg', $path, '/areas', 'USER_RIGHTS') 'Winhost.RightsRefused'
        $text = (ConvertFrom-WinhostBytes (Read-WinhostFile $path)).text
    }
    finally {
        Invoke-WinhostBestEffort "$path could not be removed" { Remove-WinhostFile $path }
    }
    $rights = @{}
    foreach ($line in $text -split '\r?\n') {
        if ($line -match '^\s*(Se\w+)\s*=\s*(.*?)\s*$') {
            $rights[$Matches[1]] = @($Matches[2] -split '\s*,\s*' -ne '')
        }
    }
    $rights
}

function Set-WinhostAccountRight {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('granted')
    if (@('SeBatchLogonRight', 'SeServiceLogonRight') -cnotcontains $Key.right) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'winhost grants and takes back SeBatchLogonRight and SeServiceLogonRight.'
    }
    Assert-WinhostBoolean $Desired @('granted')
    $holder = Find-WinhostHolder $Key.account
    $holders = (Read-WinhostRights)[$Key.right]
    $mine = @($holder, $Key.account, (Read-WinhostHolderNames)[$holder])
    # secedit.exe replaces the whole list, so it must contain the other holders.
    $others = @(foreach ($each in $holders) { if ($mine -notcontains $each) { $each } })
    if ($Desired.granted) {
        $others += $holder
    }
    Write-WinhostRight $Key.right $others
}

function Find-WinhostHolder {
    param([string]$Account)
    if ($Account -cmatch '^S-1-[0-9]+(-[0-9]+)+\z') {
        return "*$Account"
    }
    Assert-WinhostAccountName $Account
    "*$(Read-WinhostSid $Account)"
}

function Write-WinhostRight {
    param([string]$Right, [string[]]$Holders)
    $base = "$(Read-WinhostTemporaryFolder)\winhost-$([System.Guid]::NewGuid().ToString('N'))"
    $lines = @('[Unicode]', 'Unicode=yes', '[Version]', 'signature="$CHICAGO$"', 'Revision=1', '[Privilege Rights]')
    $lines += "$Right = $($Holders -join ',')"
    $bytes = ConvertTo-WinhostBytes (($lines -join "`r`n") + "`r`n") 'utf-16le'
    try {
        Write-WinhostFile "$base.inf" $bytes
        $words = @('/configure', '/db', "$base.sdb", '/cfg', "$base.inf", '/areas', 'USER_RIGHTS', '/log', "$base.log")
        $null = Invoke-WinhostProgram 'secedit.exe' $words 'Winhost.RightsRefused'
    }
    finally {
        foreach ($suffix in @('inf', 'sdb', 'jfm', 'log')) {
            Invoke-WinhostBestEffort "$base.$suffix could not be removed" { Remove-WinhostFile "$base.$suffix" }
        }
    }
}
