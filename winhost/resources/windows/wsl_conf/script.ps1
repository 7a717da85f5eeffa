# key {account, distro}   state {conf: text or null, network: text or null, resolver: text or null}; null: as the image and WSL have it
function Get-WinhostWslConf {
    param($Key)
    $null = @(Find-WinhostWslAccounts $Key)
    Assert-WinhostPart 'Read-WinhostConfs'
    Read-WinhostConfs $Key
}

function Read-WinhostConfs {
    param($Key)
    foreach ($distro in @(Find-WinhostDistros $Key)) {
        $state = Read-WinhostConf $distro
        @{ key = $distro.key; state = $state }
    }
    if ($null -ne $Key) {
        $asked = @{ account = "$(Read-WinhostField $Key 'account')"; distro = "$(Read-WinhostField $Key 'distro')" }
        @{ key = $asked; state = @{ conf = $null; network = $null; resolver = $null } }
    }
}

function Read-WinhostConf {
    param($Distro)
    $state = @{ conf = $null; network = $null; resolver = $null }
    foreach ($name in @($state.Keys)) {
        if (-not $Distro.running) {
            $state[$name] = Read-WinhostField $Distro.record.conf $name
            continue
        }
        foreach ($encoded in @(Select-WinhostValues (Read-WinhostDistroState $Distro.key) $name)) {
            $state[$name] = [System.Text.Encoding]::UTF8.GetString([System.Convert]::FromBase64String($encoded.Substring(1)))
        }
    }
    $state
}

function Set-WinhostWslConf {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('conf', 'network', 'resolver')
    Assert-WinhostDistroKey $Key
    $lines = @()
    foreach ($property in @($Desired.PSObject.Properties)) {
        $text = $property.Value
        if ($null -eq $text) {
            $lines += "$($property.Name) -"
            continue
        }
        if ($text -isnot [string] -or $text.IndexOf([char]0) -ge 0) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$($property.Name) is the text of a file, or null."
        }
        $lines += "$($property.Name) :$([System.Convert]::ToBase64String((ConvertTo-WinhostBytes $text 'utf-8')))"
    }
    Assert-WinhostDistroInstalled $Key
    $distro = @(Find-WinhostDistros $Key)[0]
    $conf = Read-WinhostConf $distro
    $null = Invoke-WinhostDistroScript $Key 'conf' $lines 300
    Join-WinhostDesired $conf $Desired
    Write-WinhostDistroRecord $Key (Join-WinhostDistroRecord $distro.record $conf $distro.record.access)
    # The files are read only when the distro starts.
    Stop-WinhostDistro $Key
    if ($distro.running) {
        Resume-WinhostDistro $Key
    }
}
