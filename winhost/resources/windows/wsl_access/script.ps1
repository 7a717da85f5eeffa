# key {account, distro}   state {user: text or null, port: int or null, listen: address or null, allowed: [network] or null, address: text or null, host_key: text or null, authorized: [text], active: bool}
function Get-WinhostWslAccess {
    param($Key)
    $null = @(Find-WinhostWslAccounts $Key)
    Assert-WinhostPart 'Read-WinhostAccesses'
    Read-WinhostAccesses $Key
}

function Read-WinhostAccesses {
    param($Key)
    foreach ($distro in @(Find-WinhostDistros $Key)) {
        $state = Read-WinhostAccess $distro
        if ($null -ne $state.port) {
            @{ key = @{ account = $distro.key.account; distro = $distro.key.distro }; state = $state }
        }
    }
    if ($null -ne $Key) {
        $state = New-WinhostAccessState
        @{ key = @{ account = "$(Read-WinhostField $Key 'account')"; distro = "$(Read-WinhostField $Key 'distro')" }; state = $state }
    }
}

function New-WinhostAccessState {
    $state = @{ user = $null; port = $null; listen = $null; allowed = $null; address = $null; host_key = $null; authorized = @(); active = $false }
    $state
}

function Read-WinhostAccess {
    param($Distro)
    $state = New-WinhostAccessState
    if (-not $Distro.running) {
        # The distro does not run. The record has the configuration that will apply, because only winhost changes it.
        $access = $Distro.record.access
        foreach ($name in @('user', 'port', 'listen', 'host_key')) {
            $state[$name] = Read-WinhostField $access $name
        }
        $state.authorized = @(foreach ($line in @(Read-WinhostField $access 'authorized')) { if ($null -ne $line) { $line } })
        if ($null -ne (Read-WinhostField $access 'allowed')) {
            $state.allowed = @($access.allowed)
        }
        return $state
    }
    $seen = Read-WinhostDistroState $Distro.key
    $state.authorized = @(Select-WinhostValues $seen 'key')
    $state.active = @(Select-WinhostValues $seen 'active').Count -gt 0
    foreach ($listen in @(Select-WinhostValues $seen 'listen')) {
        $state.user = 'root'
        $state.listen = $listen
        $state.port = [int]@(Select-WinhostValues $seen 'port')[0]
        # There is no host key yet if sshd could not be installed.
        foreach ($line in @(Select-WinhostValues $seen 'host')) {
            $state.host_key = $line
        }
        foreach ($address in @(Select-WinhostValues $seen 'address')) {
            $state.address = $address
        }
        $allowed = @(Select-WinhostValues $seen 'from')
        if ($allowed.Count -gt 0) {
            $state.allowed = $allowed
        }
    }
    $state
}

function Set-WinhostWslAccess {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('port', 'listen', 'allowed', 'authorized', 'active')
    Assert-WinhostDistroKey $Key
    foreach ($property in @($Desired.PSObject.Properties)) {
        Assert-WinhostAccessValue $property.Name $property.Value
    }
    Assert-WinhostDistroInstalled $Key
    $distro = @(Find-WinhostDistros $Key)[0]
    $goal = Read-WinhostAccess $distro
    Join-WinhostDesired $goal $Desired
    if ($null -eq $goal.port -and -not (Test-WinhostDesired $Desired 'allowed')) {
        # Without a port there are no allowed networks.
        $goal.allowed = $null
    }
    Assert-WinhostAccess $goal
    if ($null -eq $goal.port) {
        $null = Invoke-WinhostDistroScript $Key 'close' @() (Read-WinhostLongTimeout $How 1800)
        $access = $null
    }
    else {
        $lines = @("port $($goal.port)", "listen $($goal.listen)")
        if ($goal.active) {
            $lines += 'active yes'
        }
        foreach ($network in @($goal.allowed)) {
            if ($null -ne $network) {
                $lines += "from $network"
            }
        }
        foreach ($line in @($goal.authorized)) {
            $lines += "key $line"
        }
        # This may have to download packages.
        $null = Invoke-WinhostDistroScript $Key 'open' $lines (Read-WinhostLongTimeout $How 1800)
        $script:WinhostCache = @{}
        $seen = Read-WinhostDistroState $Key
        $access = @{
            user = 'root'
            port = $goal.port
            listen = $goal.listen
            allowed = $goal.allowed
            host_key = @(Select-WinhostValues $seen 'host')[0]
            authorized = @($goal.authorized)
        }
    }
    Write-WinhostDistroRecord $Key (Join-WinhostDistroRecord $distro.record $distro.record.conf $access)
    $script:WinhostCache = @{}
}

function Assert-WinhostAccess {
    param($Goal)
    $keys = @(foreach ($line in $Goal.authorized) { $line }).Count
    $none = $null -eq $Goal.port -and $null -eq $Goal.listen -and $null -eq $Goal.allowed -and $keys -eq 0 -and -not $Goal.active
    $whole = $null -ne $Goal.port -and $null -ne $Goal.listen -and $keys -gt 0
    if (-not $none -and -not $whole) {
        $why = 'A way in is a port, an address to listen on, and keys; none is null, null, null, [], and not active.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}

function Assert-WinhostAccessValue {
    param([string]$Name, $Given)
    # The value becomes a line of a file in the distro, so it must contain no line break and no keyword of sshd.
    $fits = $null -eq $Given -and @('port', 'listen', 'allowed') -contains $Name
    switch ($Name) {
        'port' {
            $fits = $fits -or (($Given -is [int] -or $Given -is [long]) -and $Given -ge 1 -and $Given -le 65535)
        }
        'listen' {
            $address = $null
            # Only the canonical form is accepted, so that what is read back equals what was desired.
            $known = "$Given" -cmatch '^[0-9a-f.:]+\z' -and [System.Net.IPAddress]::TryParse("$Given", [ref]$address)
            $fits = $fits -or ($known -and "$address" -ceq "$Given")
        }
        'allowed' {
            $fits = $fits -or ($Given -is [array] -and $Given.Count -gt 0 -and (Test-WinhostNetworks $Given))
        }
        'authorized' {
            $fits = $Given -is [array]
            foreach ($line in $Given) {
                $key = '^(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp[0-9]{3}) [A-Za-z0-9+/]+={0,2}( [A-Za-z0-9@._:-]+)?\z'
                $fits = $fits -and "$line" -cmatch $key
            }
        }
        'active' {
            $fits = $Given -is [bool]
        }
    }
    if (-not $fits) {
        $why = 'port: 1 to 65535, listen: an address, allowed: networks, each of them null; authorized: public keys; active: true or false.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}
