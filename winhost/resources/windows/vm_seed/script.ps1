# key {name: text}   state {stage: none | attached | retired or null, user: text or null, address: text or null, template: base64 or null, host_keys: [text], vm: guid or null, neighbours: [address]}; set: stage, user, address, template, host_keys
# The placeholders of a template: the id of the VM, and the host key as JSON, padded with blanks.
$script:WinhostSeedInstance = '00000000-0000-0000-0000-000000000000'
$script:WinhostSeedKeys = '{host-keys' + ('.' * 1013) + '}'

function Get-WinhostVmSeed {
    param($Key)
    $null = @(Find-WinhostVms $null)
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostVmSeeds'
        Read-WinhostVmSeeds $Key
    }
}

function Read-WinhostVmSeeds {
    param($Key)
    foreach ($entry in @(Find-WinhostRecords 'seed' $Key)) {
        $state = New-WinhostAbsentSeed
        foreach ($part in @('user', 'address', 'template')) {
            $state[$part] = Read-WinhostField $entry.record $part
        }
        $state.host_keys = @(foreach ($line in @($entry.record.host_keys)) { if ($null -ne $line) { $line } })
        $vm = Find-WinhostSeededVm $entry.name
        $state.stage = Read-WinhostValue { Read-WinhostSeedStage $entry.record $vm }
        if ($null -ne $vm) {
            $state.vm = "$($vm.Id)"
            $state.neighbours = Read-WinhostList { Find-WinhostNeighbours $vm }
        }
        @{ key = @{ name = $entry.name }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostAbsentSeed }
    }
}

function New-WinhostAbsentSeed {
    $state = @{ stage = 'none'; user = $null; address = $null; template = $null; host_keys = @(); vm = $null; neighbours = @() }
    $state
}

function Find-WinhostSeededVm {
    param([string]$Name)
    $record = Find-WinhostRecord 'vm' $Name
    if ($null -ne $record) {
        Find-WinhostRecordedVm $Name $record
    }
}

function Find-WinhostNeighbours {
    param($Vm)
    # Returns the current addresses of this VM's MAC addresses. Only the host key proves that it is the guest.
    foreach ($adapter in @(Get-VMNetworkAdapter -VM $Vm -ErrorAction Stop)) {
        foreach ($neighbour in @(Read-WinhostCached 'neighbours' { Get-NetNeighbor -AddressFamily IPv4 -ErrorAction Stop })) {
            $mac = "$($neighbour.LinkLayerAddress)" -replace '-', ''
            if ($mac -eq "$($adapter.MacAddress)" -and @('Unreachable', 'Incomplete') -notcontains "$($neighbour.State)") {
                "$($neighbour.IPAddress)"
            }
        }
    }
}

function Read-WinhostSeedStage {
    param($Record, $Vm)
    $drive = Find-WinhostSeedDrive $Vm $Record.path
    $there = Test-WinhostFile $Record.path
    if ($Record.retired -and -not $there -and $null -eq $drive) {
        return 'retired'
    }
    if ($Record.complete -and -not $Record.retired -and $there -and $null -ne $drive) {
        return 'attached'
    }
}

function Find-WinhostSeedDrive {
    param($Vm, [string]$Path)
    if ($null -eq $Vm) {
        return
    }
    foreach ($drive in @(Get-VMDvdDrive -VM $Vm -ErrorAction Stop)) {
        if (Test-WinhostText "$($drive.Path)" $Path 'OrdinalIgnoreCase') {
            return $drive
        }
    }
}

function Set-WinhostVmSeed {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('stage', 'user', 'address', 'template', 'host_keys')
    Assert-WinhostVmName $Key
    Assert-WinhostSeedDesired $Desired
    $name = "$($Key.name)"
    $record = Find-WinhostRecord 'seed' $name
    $stage = Read-WinhostField $Desired 'stage'
    if ($stage -ceq 'none') {
        if ($null -ne $record) {
            Remove-WinhostSeedDisc $name $record
            Write-WinhostRecord 'seed' $name $null
        }
        return
    }
    if ($stage -ceq 'attached') {
        Add-WinhostSeed $name $record $Desired
        return
    }
    if ($null -eq $record -or -not $record.complete) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "winhost made no seed for $name."
    }
    foreach ($part in @('user', 'address', 'template')) {
        if (Test-WinhostDesired $Desired $part) {
            Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'The seed was made already, with others: take it away first.'
        }
    }
    if (Test-WinhostDesired $Desired 'host_keys') {
        # The guest is recognized by these keys, so they are recorded before the CD is removed.
        $record.host_keys = @($Desired.host_keys)
        Write-WinhostRecord 'seed' $name $record
    }
    if ($stage -ceq 'retired') {
        Remove-WinhostSeedDisc $name $record
        $record.retired = $true
        Write-WinhostRecord 'seed' $name $record
    }
}

function Assert-WinhostSeedDesired {
    param($Desired)
    if ((Test-WinhostDesired $Desired 'stage') -and @('none', 'attached', 'retired') -cnotcontains $Desired.stage) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'stage is none, attached or retired.'
    }
    Assert-WinhostPattern $Desired 'user' '^[a-z_][a-z0-9_-]{0,31}\z' 'the name of a user'
    Assert-WinhostPattern $Desired 'address' '^[0-9a-f.:]{2,45}/[0-9]{1,3}\z' 'an address with its network, as 192.0.2.10/24'
    Assert-WinhostPattern $Desired 'template' '^[A-Za-z0-9+/]{4,16384}={0,2}\z' 'a packed disc in base64'
    if (-not (Test-WinhostDesired $Desired 'host_keys')) {
        return
    }
    foreach ($line in @($Desired.host_keys)) {
        if ($Desired.host_keys -isnot [array] -or "$line" -cnotmatch '^ssh-ed25519 [A-Za-z0-9+/]{68}\z') {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'host_keys is a list of ed25519 keys, without names.'
        }
    }
}

# ---- creating

function Add-WinhostSeed {
    param([string]$Name, $Record, $Desired)
    Assert-WinhostRequired $Desired @('user', 'template') 'A seed is made of a template, for a user.'
    if (Test-WinhostDesired $Desired 'host_keys') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The host key is made with the seed.'
    }
    $vm = Find-WinhostOwnVm $Name (Find-WinhostRecord 'vm' $Name)
    if ("$($vm.State)" -cne 'Off') {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The VM is $($vm.State): its Linux reads a seed on its first start only."
    }
    Assert-WinhostAddressFree (Read-WinhostField $Desired 'address') $vm
    $folder = "$(Read-WinhostVmStore)\$Name"
    $path = "$folder\seed.iso"
    if ($null -eq $Record -and -not (Test-WinhostEmptyPath $path)) {
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' "There is a $path that winhost did not make."
    }
    # Others who can traverse this folder can read no file in it, so the key is protected from its first byte on.
    Initialize-WinhostFolder $folder 'machines'
    $mine = @{ path = $path; user = $Desired.user; address = (Read-WinhostField $Desired 'address'); template = $Desired.template; host_keys = @(); complete = $false; retired = $false }
    Write-WinhostRecord 'seed' $Name $mine
    Remove-WinhostFile $path
    $pair = New-WinhostHostKey "$folder\seed.key"
    $disc = Join-WinhostSeed $Desired.template "$($vm.Id)" $pair
    Add-WinhostPiece $path $true ([byte[]]@())
    Write-WinhostFileRights $path "$script:WinhostOnlyAdministratorsFile(A;;FR;;;$(Read-WinhostVmSid $vm))"
    Add-WinhostPiece $path $false $disc
    Add-WinhostSeedDrive $vm $path
    $mine.host_keys = @($pair.public)
    $mine.complete = $true
    Write-WinhostRecord 'seed' $Name $mine
}

function New-WinhostHostKey {
    param([string]$Path)
    # Uses ssh-keygen.exe, because Windows has no cmdlet for ed25519. The private key is on disk only while it runs.
    foreach ($each in @($Path, "$Path.pub")) {
        Remove-WinhostFile $each
    }
    $ended = $false
    try {
        $done = Invoke-WinhostNative 'OpenSSH\ssh-keygen.exe' @('-q', '-t', 'ed25519', '-N', '', '-C', 'winhost', '-f', $Path) 60
        if ($null -eq $done) {
            $why = 'This host has no ssh-keygen.exe, which makes the key of the guest. Install it: Add-WindowsCapability -Online -Name OpenSSH.Client~~~~0.0.1.0'
            Stop-Winhost 'Winhost.NoSshKeygen' 'NotInstalled' $why
        }
        if ($done.code -ne 0) {
            Stop-Winhost 'Winhost.InvalidKey' 'InvalidResult' "ssh-keygen.exe ended with $($done.code)."
        }
        $private = [System.Text.Encoding]::ASCII.GetString((Read-WinhostFile $Path))
        $public = [System.Text.Encoding]::ASCII.GetString((Read-WinhostFile "$Path.pub"))
        $ended = $true
    }
    finally {
        foreach ($each in @($Path, "$Path.pub")) {
            Invoke-WinhostCleanup $ended "$each could not be removed" { Remove-WinhostFile $each }
        }
    }
    if ($public -cnotmatch '^(ssh-ed25519 [A-Za-z0-9+/]{68}) winhost\r?\n?\z' -or $private -notlike '-----BEGIN OPENSSH PRIVATE KEY-----*') {
        Stop-Winhost 'Winhost.InvalidKey' 'InvalidResult' 'What ssh-keygen.exe made is no key of OpenSSH.'
    }
    @{ public = $Matches[1]; private = $private -replace '\r', '' }
}

function Join-WinhostSeed {
    param([string]$Template, [string]$Id, $Pair)
    # Latin-1 maps each byte to one character and back.
    $latin = [System.Text.Encoding]::GetEncoding(28591)
    $text = $latin.GetString((Expand-WinhostGzip $Template))
    $keys = ConvertTo-Json -InputObject @{ ed25519_private = $Pair.private; ed25519_public = $Pair.public } -Compress -ErrorAction Stop
    $disc = $text.Replace($script:WinhostSeedInstance, $Id).Replace($script:WinhostSeedKeys, $keys.PadRight($script:WinhostSeedKeys.Length))
    if ($text.IndexOf($script:WinhostSeedKeys, [System.StringComparison]::Ordinal) -lt 0 -or $disc.Length -ne $text.Length) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The template has no room for the key.'
    }
    , $latin.GetBytes($disc)
}

function Read-WinhostVmSid {
    param($Vm)
    # Returns the SID of NT VIRTUAL MACHINE\<id>, as which the worker process runs: four numbers from the VM's id.
    $bytes = ([guid]"$($Vm.Id)").ToByteArray()
    $parts = @(foreach ($at in @(0, 4, 8, 12)) { [System.BitConverter]::ToUInt32($bytes, $at) })
    "S-1-5-83-1-$($parts -join '-')"
}

function Add-WinhostSeedDrive {
    param($Vm, [string]$Path)
    # Uses only a drive that is empty or has this CD already, so that other media stay in their drives.
    foreach ($found in @($Path, '')) {
        $drive = Find-WinhostSeedDrive $Vm $found
        if ($null -ne $drive) {
            Set-VMDvdDrive -VMDvdDrive $drive -Path $Path -ErrorAction Stop
            return
        }
    }
    Add-VMDvdDrive -VM $Vm -Path $Path -ErrorAction Stop
}

# ---- removing

function Remove-WinhostSeedDisc {
    param([string]$Name, $Record)
    Assert-WinhostOwnFile $Name $Record.path 'seed.iso'
    $drive = Find-WinhostSeedDrive (Find-WinhostSeededVm $Name) $Record.path
    if ($null -ne $drive) {
        # This also works for a running VM. The empty drive stays.
        Set-VMDvdDrive -VMDvdDrive $drive -Path $null -ErrorAction Stop
    }
    Assert-WinhostNoLink $Record.path
    Remove-WinhostFile $Record.path
    foreach ($key in @('seed.key', 'seed.key.pub')) {
        Remove-WinhostFile "$(Split-WinhostPath $Record.path)\$key"
    }
}
