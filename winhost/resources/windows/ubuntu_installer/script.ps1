# key {name: ubuntu}   state {made: bool or null, partition: guid or null, image: text or null, files: base64 or null, user: text or null, address: text or null, host_key: text or null, ticket: sha256 or null}; how {accept: data, secret: the text of the ticket}
$script:WinhostTicket = 'winhost\fetch.json'

function Get-WinhostUbuntuInstaller {
    param($Key)
    Assert-WinhostAdministrator
    foreach ($each in @(Find-WinhostMadeRecords 'ubuntu' $Key)) {
        $state = New-WinhostNoInstaller
        $state.made = $null
        foreach ($part in @('partition', 'image', 'files', 'user', 'address', 'host_key')) {
            $state[$part] = Read-WinhostField $each.record $part
        }
        $root = Find-WinhostInstallerRoot "$($each.record.partition)"
        if ($null -ne $root -and $each.record.complete) {
            $state.made = $true
            $state.ticket = Read-WinhostVolumeHash "$root$script:WinhostTicket"
        }
        @{ key = @{ name = $each.name }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostNoInstaller }
    }
}

function New-WinhostNoInstaller {
    $state = @{ made = $false; partition = $null; image = $null; files = $null; user = $null; address = $null; host_key = $null; ticket = $null }
    $state
}

function Find-WinhostInstallerRoot {
    param([string]$Guid)
    # Of the partition that winhost made for it, where it is as it was made; nothing else is written to.
    $record = Find-WinhostMadeRecord 'partition' ([PSCustomObject]@{ name = 'staging' })
    if ($null -eq $record) {
        return
    }
    $found = Find-WinhostOwnPartition $record
    if ($null -ne $found -and $found.guid -eq $Guid) {
        Read-WinhostEfiRoot $found.found
    }
}

function Set-WinhostUbuntuInstaller {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('made', 'partition', 'image', 'files', 'user', 'address', 'host_key', 'ticket')
    Assert-WinhostAdministrator
    if ("$($Key.name)" -cne 'ubuntu') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'winhost makes the installer ubuntu.'
    }
    Assert-WinhostInstallerDesired $Desired
    if (-not (Test-WinhostAccepted $How 'data')) {
        Stop-Winhost 'Winhost.HoldsData' 'ResourceBusy' 'Files would be written to a partition, without the consent for it.'
    }
    $record = Find-WinhostMadeRecord 'ubuntu' $Key
    if (Test-WinhostDesired $Desired 'made') {
        if (-not $Desired.made) {
            Remove-WinhostInstaller $record
            return
        }
        $record = Add-WinhostInstaller $Desired
    }
    if ($null -eq $record -or -not $record.complete) {
        Stop-Winhost 'Winhost.WrongPlace' 'InvalidOperation' 'winhost made no installer here: make that first.'
    }
    Write-WinhostInstallerKey $record $Desired $How
}

function Assert-WinhostInstallerDesired {
    param($Desired)
    if ((Test-WinhostDesired $Desired 'made') -and $Desired.made -isnot [bool]) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'made is true or false.'
    }
    $forms = @{
        partition = '\A[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z'
        image = '\A[0-9a-f]{64}-[A-Za-z0-9._-]{1,63}\z'
        files = '\A[A-Za-z0-9+/]{4,65536}={0,2}\z'
        user = '\A[a-z_][a-z0-9_-]{0,31}\z'
        address = '\A[0-9a-f.:]{2,45}/[0-9]{1,3}\z'
        host_key = '\Assh-ed25519 [A-Za-z0-9+/]{68}\z'
        ticket = '\A[0-9a-f]{64}\z'
    }
    foreach ($name in @($forms.Keys)) {
        $text = Read-WinhostField $Desired $name
        if ($null -ne $text -and ($text -isnot [string] -or $text -cnotmatch $forms[$name])) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$name is none, or has another form."
        }
    }
}

# ---- come

function Add-WinhostInstaller {
    param($Desired)
    foreach ($part in @('partition', 'image', 'files', 'user')) {
        if ($null -eq (Read-WinhostField $Desired $part)) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'An installer is made of an image, on a partition, with files beside it and for a user.'
        }
    }
    $root = Find-WinhostInstallerRoot $Desired.partition
    if ($null -eq $root) {
        Stop-Winhost 'Winhost.WrongPlace' 'ObjectNotFound' "$($Desired.partition) is not the partition that winhost made for an installer."
    }
    $image = "$(Read-WinhostProgramData)\winhost\files\$($Desired.image)"
    if (-not (Test-WinhostFile $image)) {
        Stop-Winhost 'Winhost.NoImage' 'ObjectNotFound' "There is no staged file $($Desired.image)."
    }
    $texts = ConvertFrom-WinhostPacked $Desired.files
    $record = [PSCustomObject]@{ partition = $Desired.partition; image = $Desired.image; files = $Desired.files; user = $Desired.user; address = Read-WinhostField $Desired 'address'; host_key = $null; complete = $false }
    Write-WinhostMadeRecord 'ubuntu' 'ubuntu' $record
    Copy-WinhostImage $image $root
    foreach ($file in @($texts.PSObject.Properties)) {
        Write-WinhostVolumeText "$root$($file.Name.Replace('/', '\'))" "$($file.Value)"
    }
    $record.complete = $true
    Write-WinhostMadeRecord 'ubuntu' 'ubuntu' $record
    $record
}

function ConvertFrom-WinhostPacked {
    param([string]$Packed)
    $bytes = [System.Convert]::FromBase64String($Packed)
    $from = New-Object -TypeName System.IO.MemoryStream -ArgumentList (, $bytes)
    $gzip = New-Object -TypeName System.IO.Compression.GZipStream -ArgumentList $from, ([System.IO.Compression.CompressionMode]::Decompress)
    $reader = New-Object -TypeName System.IO.StreamReader -ArgumentList $gzip, ([System.Text.Encoding]::UTF8)
    try {
        $text = $reader.ReadToEnd()
    }
    finally {
        $reader.Dispose()
    }
    $texts = ConvertFrom-Json -InputObject $text -ErrorAction Stop
    foreach ($file in @($texts.PSObject.Properties)) {
        # Below the partition's root, and nothing that leads out of it.
        if ($file.Name -cnotmatch '\A[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,4}\z' -or $file.Name -match '(\A|/)\.\.?(/|\z)' -or $file.Value -isnot [string]) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'files are texts by their paths.'
        }
    }
    $texts
}

function Copy-WinhostImage {
    param([string]$Image, [string]$Root)
    $mounted = Mount-DiskImage -ImagePath $Image -StorageType ISO -Access ReadOnly -NoDriveLetter -PassThru -ErrorAction Stop
    try {
        $source = "$(@(Get-Volume -DiskImage $mounted -ErrorAction Stop)[0].Path)"
        $names = @(Read-WinhostVolumeNames $source)
        if ($names -notcontains 'casper\vmlinuz') {
            Stop-Winhost 'Winhost.NoInstaller' 'InvalidData' 'This image is not an installer of Ubuntu Server: it has no casper\vmlinuz.'
        }
        foreach ($name in $names) {
            Add-WinhostVolumeFolder "$Root$name"
            Copy-WinhostVolumeFile "$source$name" "$Root$name"
        }
    }
    finally {
        $null = Dismount-DiskImage -ImagePath $Image -StorageType ISO -Confirm:$false -ErrorAction Stop
    }
}

function Write-WinhostVolumeText {
    param([string]$Path, [string]$Text)
    # Written in a folder of administrators first: .NET itself refuses paths of volumes without a letter.
    $folder = "$(Read-WinhostProgramData)\winhost"
    Initialize-WinhostFolder $folder 'ours'
    $beside = "$folder\installer.part"
    try {
        Write-WinhostFile $beside ([System.Text.Encoding]::UTF8.GetBytes($Text))
        Add-WinhostVolumeFolder $Path
        Copy-WinhostVolumeFile $beside $Path
    }
    finally {
        Remove-WinhostFile $beside
    }
}

# ---- the moment of use

function Write-WinhostInstallerKey {
    param($Record, $Desired, $How)
    # Noted before the installer could come to know it: by this key the new system is known.
    if (Test-WinhostDesired $Desired 'host_key') {
        $Record.host_key = $Desired.host_key
        Write-WinhostMadeRecord 'ubuntu' 'ubuntu' $Record
    }
    if (-not (Test-WinhostDesired $Desired 'ticket')) {
        return
    }
    $root = Find-WinhostInstallerRoot "$($Record.partition)"
    if ($null -eq $root) {
        Stop-Winhost 'Winhost.WrongPlace' 'ObjectNotFound' 'The partition of the installer is not there any more.'
    }
    $path = "$root$script:WinhostTicket"
    if ($null -eq $Desired.ticket) {
        if ($null -ne (Read-WinhostVolumeHash $path)) {
            Remove-WinhostVolumeFile $path
        }
        return
    }
    $ticket = "$(Read-WinhostField $How 'secret')"
    if ($ticket.Length -gt 4096 -or (Measure-WinhostText $ticket) -cne $Desired.ticket) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The ticket is another than its SHA-256 says.'
    }
    Write-WinhostVolumeText $path $ticket
}

function Measure-WinhostText {
    param([string]$Text)
    $sha = [System.Security.Cryptography.SHA256]::Create()
    try {
        [System.BitConverter]::ToString($sha.ComputeHash([System.Text.Encoding]::UTF8.GetBytes($Text))).Replace('-', '').ToLowerInvariant()
    }
    finally {
        $sha.Dispose()
    }
}

# ---- go

function Remove-WinhostInstaller {
    param($Record)
    if ($null -eq $Record) {
        return
    }
    $root = Find-WinhostInstallerRoot "$($Record.partition)"
    if ($null -ne $root) {
        foreach ($name in @(Read-WinhostVolumeNames $root)) {
            # What Windows itself keeps on each volume stays.
            if ($name -notlike 'System Volume Information\*') {
                Remove-WinhostVolumeFile "$root$name"
            }
        }
    }
    Write-WinhostMadeRecord 'ubuntu' 'ubuntu' $null
}
