# key {account, distro}   state {user: text or null, port: int or null, listen: address or null, address: text or null, host_key: text or null, authorized: [text], active: bool}
function Get-WinhostWslAccess {
    param($Key)
    foreach ($distro in @(Find-WinhostDistros $Key)) {
        $state = Read-WinhostAccess $distro
        if ($null -ne $state.port) {
            @{ key = @{ account = $distro.key.account; distro = $distro.key.distro }; state = $state }
        }
    }
    if ($null -ne $Key) {
        $state = @{ user = $null; port = $null; listen = $null; address = $null; host_key = $null; authorized = @(); active = $false }
        @{ key = @{ account = "$(Read-WinhostField $Key 'account')"; distro = "$(Read-WinhostField $Key 'distro')" }; state = $state }
    }
}

function Read-WinhostAccess {
    param($Distro)
    if (-not $Distro.running) {
        # Nobody listens, and nobody but us has changed what it will do once it runs.
        $access = $Distro.record.access
        $state = @{
            user = Read-WinhostField $access 'user'
            port = Read-WinhostField $access 'port'
            listen = Read-WinhostField $access 'listen'
            address = $null
            host_key = Read-WinhostField $access 'host_key'
            authorized = @(foreach ($line in @(Read-WinhostField $access 'authorized')) { if ($null -ne $line) { $line } })
            active = $false
        }
        return $state
    }
    $seen = Read-WinhostInside $Distro.key
    $state = @{
        user = $null
        port = $null
        listen = $null
        address = $null
        host_key = $null
        authorized = @(Select-WinhostSaid $seen 'key')
        active = @(Select-WinhostSaid $seen 'active').Count -gt 0
    }
    foreach ($listen in @(Select-WinhostSaid $seen 'listen')) {
        $state.user = 'root'
        $state.listen = $listen
        $state.port = [int]@(Select-WinhostSaid $seen 'port')[0]
        $state.host_key = @(Select-WinhostSaid $seen 'host')[0]
        foreach ($address in @(Select-WinhostSaid $seen 'address')) {
            $state.address = $address
        }
    }
    $state
}

function Set-WinhostWslAccess {
    param($Key, $Want, $How)
    Assert-WinhostWant $Want @('port', 'listen', 'authorized', 'active')
    Assert-WinhostDistroKey $Key
    foreach ($property in @($Want.PSObject.Properties)) {
        Assert-WinhostAccessValue $property.Name $property.Value
    }
    Assert-WinhostInstalled $Key
    $distro = @(Find-WinhostDistros $Key)[0]
    $goal = Read-WinhostAccess $distro
    foreach ($property in @($Want.PSObject.Properties)) {
        $goal[$property.Name] = $property.Value
    }
    Assert-WinhostAccess $goal
    if ($null -eq $goal.port) {
        $null = Invoke-WinhostInside $Key 'close' @() (Read-WinhostSlow $How 1800)
        $access = $null
    }
    else {
        $lines = @("port $($goal.port)", "listen $($goal.listen)")
        if ($goal.active) {
            $lines += 'active yes'
        }
        foreach ($line in @($goal.authorized)) {
            $lines += "key $line"
        }
        # Packages may have to be fetched.
        $null = Invoke-WinhostInside $Key 'open' $lines (Read-WinhostSlow $How 1800)
        $script:WinhostOnce = @{}
        $seen = Read-WinhostInside $Key
        $access = @{
            user = 'root'
            port = $goal.port
            listen = $goal.listen
            host_key = @(Select-WinhostSaid $seen 'host')[0]
            authorized = @($goal.authorized)
        }
    }
    Write-WinhostDistroRecord $Key (Join-WinhostRecord $distro.record $distro.record.conf $access)
    $script:WinhostOnce = @{}
}

function Assert-WinhostAccess {
    param($Goal)
    $keys = @(foreach ($line in $Goal.authorized) { $line }).Count
    $none = $null -eq $Goal.port -and $null -eq $Goal.listen -and $keys -eq 0 -and -not $Goal.active
    $whole = $null -ne $Goal.port -and $null -ne $Goal.listen -and $keys -gt 0
    if (-not $none -and -not $whole) {
        $why = 'A way in is a port, an address to listen on, and keys; none is null, null, [], and not active.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}

function Assert-WinhostAccessValue {
    param([string]$Name, $Given)
    # What passes here is a line of ours in the distro: no line breaks, no words of sshd.
    $fits = $null -eq $Given -and @('port', 'listen') -contains $Name
    switch ($Name) {
        'port' {
            $fits = $fits -or (($Given -is [int] -or $Given -is [long]) -and $Given -ge 1 -and $Given -le 65535)
        }
        'listen' {
            $address = $null
            # In its one spelling, so that what is read is what was wanted.
            $known = "$Given" -cmatch '^[0-9a-f.:]+\z' -and [System.Net.IPAddress]::TryParse("$Given", [ref]$address)
            $fits = $fits -or ($known -and "$address" -ceq "$Given")
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
        $why = 'port: 1 to 65535, listen: an address, either null; authorized: public keys; active: true or false.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}
