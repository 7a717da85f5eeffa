# key {adapter: guid}   state {name: text, description: text, service: text or null, mac: text or null, kind: ethernet | wifi | team | virtual | vpn | other, status: up | disconnected | disabled | down, speed: bits per second or null, vlan: number or null, addresses: [{address, prefix, origin}], gateway: text or null, dns: [text], profile: public | private | domain or null, switch: guid or null, management: bool, filters: [text]}
function Get-WinhostNetworkAdapter {
    foreach ($adapter in @(Get-NetAdapter -ErrorAction Stop)) {
        $guid = ConvertTo-WinhostGuid $adapter.InterfaceGuid
        $index = $adapter.InterfaceIndex
        $state = @{
            name = "$($adapter.Name)"
            description = "$($adapter.InterfaceDescription)"
            service = Read-WinhostValue { Find-WinhostAdapterSetting $index 'ServiceName' }
            mac = ConvertTo-WinhostMac $adapter
            kind = Read-WinhostValue { ConvertTo-WinhostAdapterKind $adapter }
            status = ConvertTo-WinhostAdapterStatus $adapter
            speed = ConvertTo-WinhostSpeed $adapter
            vlan = $adapter.VlanID
            addresses = Read-WinhostList { Find-WinhostAddresses $index }
            gateway = Read-WinhostValue { Find-WinhostGateway $index }
            dns = Read-WinhostList { Find-WinhostAdapterSetting $index 'DNSServerSearchOrder' }
            profile = Read-WinhostValue { Find-WinhostNetworkProfile $index }
            switch = Read-WinhostValue { Find-WinhostAdapterSwitch $guid }
            management = Read-WinhostValue { Test-WinhostManagementAdapter $index }
            filters = Read-WinhostList { Find-WinhostFilters $adapter }
        }
        @{ key = @{ adapter = $guid }; state = $state }
    }
}

function ConvertTo-WinhostMac {
    param($Adapter)
    if ("$($Adapter.MacAddress)".Length -eq 0) {
        return $null
    }
    "$($Adapter.MacAddress)".Replace('-', ':').ToLowerInvariant()
}

function ConvertTo-WinhostAdapterKind {
    param($Adapter)
    # Classifies an adapter by what its driver reports, because names are localized. NDIS media: 1 and 9 are wireless, 14
    # is Ethernet. Interface types: 23 is PPP, 53 a virtual interface of a program, 131 a tunnel. Many VPN clients report
    # Ethernet; docs/wsl2.md lists the words by which each is recognized, and their sources.
    $component = "$($Adapter.ComponentID)"
    if (@(1, 9) -contains $Adapter.NdisPhysicalMedium) {
        return 'wifi'
    }
    if ($component -like '*ms_implat*') {
        return 'team'
    }
    if ($component -like '*vms_*') {
        return 'virtual'
    }
    $service = Find-WinhostAdapterSetting $Adapter.InterfaceIndex 'ServiceName'
    $vpn = 'vpn|tap0|tap-win|wintun|wireguard|PANGP|Forti|ft_?s?vnic|pppop|vna_ap|cp_apvna|Check Point|ctxva|Citrix|jnprva|dsNcAdpt'
    $names = "$component $service $($Adapter.DriverName) $($Adapter.InterfaceDescription)"
    if (@(23, 53, 131) -contains $Adapter.InterfaceType -or $names -match "$vpn|Juniper|Pulse|SonicWall|SWVNIC|Zscaler|ZeroTier|zttap") {
        return 'vpn'
    }
    if ($Adapter.Virtual) {
        return 'virtual'
    }
    if ($Adapter.HardwareInterface -and @(0, 14) -contains $Adapter.NdisPhysicalMedium) {
        return 'ethernet'
    }
    'other'
}

function ConvertTo-WinhostAdapterStatus {
    param($Adapter)
    # Numbers of RFC 2863 and NDIS are compared, because the corresponding names are localized.
    if ($Adapter.InterfaceOperationalStatus -eq 1) {
        return 'up'
    }
    if ($Adapter.InterfaceAdminStatus -eq 2) {
        return 'disabled'
    }
    if ($Adapter.MediaConnectState -eq 2) {
        return 'disconnected'
    }
    'down'
}

function ConvertTo-WinhostSpeed {
    param($Adapter)
    # Without a link, drivers report null, 0 or the maximum value.
    if ($null -eq $Adapter.Speed -or $Adapter.Speed -eq 0 -or $Adapter.Speed -gt [long]::MaxValue) {
        return $null
    }
    [long]$Adapter.Speed
}

function Find-WinhostByInterface {
    param($Index, [string]$What, [scriptblock]$Read)
    foreach ($each in @(Read-WinhostCached $What $Read)) {
        if ($each.InterfaceIndex -eq $Index) {
            $each
        }
    }
}

function Find-WinhostAddresses {
    param($Index)
    foreach ($address in @(Find-WinhostByInterface $Index 'addresses' { Get-NetIPAddress -ErrorAction Stop })) {
        # WellKnown: link-local addresses, which every adapter assigns itself.
        if ("$($address.PrefixOrigin)" -ne 'WellKnown') {
            $origin = ConvertTo-WinhostKebab "$($address.PrefixOrigin)"
            @{ address = "$($address.IPAddress)"; prefix = [int]$address.PrefixLength; origin = $origin }
        }
    }
}

function Find-WinhostGateway {
    param($Index)
    foreach ($route in @(Find-WinhostByInterface $Index 'routes' { Get-NetRoute -ErrorAction Stop })) {
        if ("$($route.DestinationPrefix)" -eq '0.0.0.0/0') {
            return "$($route.NextHop)"
        }
    }
}

function Find-WinhostAdapterSetting {
    param($Index, [string]$Property)
    $read = { Get-CimInstance -ClassName Win32_NetworkAdapterConfiguration -ErrorAction Stop }
    foreach ($found in @(Find-WinhostByInterface $Index 'configurations' $read)) {
        if ($null -ne $found.$Property) {
            @($found.$Property)
        }
    }
}

function Find-WinhostNetworkProfile {
    param($Index)
    $words = @{ Public = 'public'; Private = 'private'; DomainAuthenticated = 'domain' }
    foreach ($found in @(Find-WinhostByInterface $Index 'profiles' { Get-NetConnectionProfile -ErrorAction Stop })) {
        return $words["$($found.NetworkCategory)"]
    }
}

function Find-WinhostAdapterSwitch {
    param([string]$Guid)
    if (-not (Test-WinhostHyperV)) {
        return $null
    }
    foreach ($switch in @(Read-WinhostCached 'switches' { Get-VMSwitch -ErrorAction Stop })) {
        if (@(Find-WinhostSwitchAdapters $switch) -contains $Guid) {
            return "$($switch.Id)"
        }
    }
}

function Find-WinhostSwitchAdapters {
    param($Switch)
    # Returns the adapters of a switch: none for an internal one, usually one, several if the switch is a team.
    foreach ($bound in @($Switch.NetAdapterInterfaceGuid)) {
        if ($null -ne $bound) {
            ConvertTo-WinhostGuid $bound
        }
    }
}

function Test-WinhostManagementAdapter {
    param($Index)
    # Any session on the ports of WinRM counts, because other administrators must not be disconnected either.
    $local = @(foreach ($connection in @(Find-WinhostSessions)) { "$($connection.LocalAddress)" })
    if ($local.Count -eq 0) {
        $null = Assert-WinhostValue $null
    }
    foreach ($address in @(Find-WinhostByInterface $Index 'addresses' { Get-NetIPAddress -ErrorAction Stop })) {
        if ($local -contains "$($address.IPAddress)") {
            return $true
        }
    }
    $false
}

function Find-WinhostSessions {
    foreach ($connection in @(Read-WinhostCached 'tcp' { Get-NetTCPConnection -ErrorAction Stop })) {
        if (@(5985, 5986) -contains $connection.LocalPort -and "$($connection.State)" -eq 'Established') {
            $connection
        }
    }
}

function Find-WinhostFilters {
    param($Adapter)
    foreach ($binding in @(Read-WinhostCached 'bindings' { Get-NetAdapterBinding -AllBindings -ErrorAction Stop })) {
        $bound = Test-WinhostText "$($binding.Name)" "$($Adapter.Name)" 'Ordinal'
        if ($bound -and $binding.Enabled -and "$($binding.ComponentID)" -notmatch '^v?ms_') {
            "$($binding.DisplayName)"
        }
    }
}
