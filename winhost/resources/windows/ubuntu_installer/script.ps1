# key {name: ubuntu}   state {made: bool or null, partition: guid or null, image: text or null, files: base64 or null, user: text or null, address: text or null, host_key: text or null, ticket: sha256 or null}; how {accept: data, secret: the text of the ticket}
$script:WinhostTicket = 'winhost\fetch.json'

function Get-WinhostUbuntuInstaller {
    param($Key)
    Assert-WinhostAdministrator
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostInstallers'
        Read-WinhostInstallers $Key
    }
}

function Read-WinhostInstallers {
    param($Key)
    foreach ($each in @(Find-WinhostRecords 'ubuntu' $Key)) {
        $state = New-WinhostAbsentInstaller
        $state.made = $null
        foreach ($part in @('partition', 'image', 'files', 'user', 'address', 'host_key')) {
            $state[$part] = Read-WinhostField $each.record $part
        }
        $found = Find-WinhostInstallerPartition "$($each.record.partition)"
        if ($null -ne $found -and $each.record.complete) {
            $state.made = $true
            $state.ticket = Read-WinhostVolumeHash "$(Read-WinhostPartitionRoot $found)$script:WinhostTicket"
        }
        @{ key = @{ name = $each.name }; state = $state }
    }
    if ($null -ne $Key) {
        @{ key = @{ name = "$(Read-WinhostField $Key 'name')" }; state = New-WinhostAbsentInstaller }
    }
}

function New-WinhostAbsentInstaller {
    $state = @{ made = $false; partition = $null; image = $null; files = $null; user = $null; address = $null; host_key = $null; ticket = $null }
    $state
}

function Find-WinhostInstallerPartition {
    param([string]$Guid)
    # Returns the partition that winhost created for the installer, if it is unchanged. Only this partition is written to.
    $record = Find-WinhostRecord 'partition' 'staging'
    if ($null -eq $record) {
        return
    }
    $found = Find-WinhostOwnPartition $record
    if ($null -ne $found -and $found.guid -eq $Guid) {
        $found.found
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
    Assert-WinhostDataConsent $How 'Files would be written to a partition'
    $record = Find-WinhostRecord 'ubuntu' 'ubuntu'
    if (Test-WinhostDesired $Desired 'made') {
        if (-not $Desired.made) {
            Remove-WinhostInstaller $record
            return
        }
        $record = Add-WinhostInstaller $Desired $record
    }
    elseif (Test-WinhostInstallerParts $Desired) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'An installer stays what it is: set made, too, to make it again.'
    }
    if ($null -eq $record -or -not $record.complete) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'There is no finished installer on this host: set made first.'
    }
    Write-WinhostInstallerKey $record $Desired $How
}

function Assert-WinhostInstallerDesired {
    param($Desired)
    Assert-WinhostBoolean $Desired @('made')
    Assert-WinhostPattern $Desired 'partition' $script:WinhostGuidForm 'the GUID of a partition'
    Assert-WinhostPattern $Desired 'image' '\A[0-9a-f]{64}-[A-Za-z0-9._-]{1,63}\z' 'the SHA-256 and the name of a staged file'
    Assert-WinhostPattern $Desired 'files' '\A[A-Za-z0-9+/]{4,65536}={0,2}\z' 'files by their paths, as gzip in base64'
    Assert-WinhostPattern $Desired 'user' '\A[a-z_][a-z0-9_-]{0,31}\z' 'the name of a user'
    Assert-WinhostPattern $Desired 'address' '\A[0-9a-f.:]{2,45}/[0-9]{1,3}\z' 'an address with its network, as 192.0.2.10/24'
    Assert-WinhostPattern $Desired 'host_key' '\Assh-ed25519 [A-Za-z0-9+/]{68}\z' 'an ed25519 key, without a name'
    Assert-WinhostPattern $Desired 'ticket' '\A[0-9a-f]{64}\z' 'a SHA-256'
}

function Test-WinhostInstallerParts {
    param($Desired)
    foreach ($part in @('partition', 'image', 'files', 'user', 'address')) {
        if (Test-WinhostDesired $Desired $part) {
            return $true
        }
    }
    $false
}

# ---- creating

function Add-WinhostInstaller {
    param($Desired, $Begun)
    $record = [PSCustomObject]@{ partition = $null; image = $null; files = $null; user = $null; address = $null; host_key = $null; content = $null; complete = $false }
    foreach ($part in @('partition', 'image', 'files', 'user', 'address')) {
        # An interrupted installer is completed with its recorded values.
        $from = $Begun
        if (Test-WinhostDesired $Desired $part) {
            $from = $Desired
        }
        $record.$part = Read-WinhostField $from $part
        if ($null -eq $record.$part -and $part -cne 'address') {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'An installer is made of an image, on a partition, with files beside it and for a user.'
        }
    }
    $partition = Find-WinhostInstallerPartition $record.partition
    if ($null -eq $partition) {
        Stop-Winhost 'Winhost.WrongState' 'ObjectNotFound' "$($record.partition) is not the partition that winhost made for an installer."
    }
    $image = Find-WinhostStagedFile $record.image.Substring(0, 64)
    $texts = ConvertFrom-WinhostPackedFiles $record.files
    Write-WinhostRecord 'ubuntu' 'ubuntu' $record
    # Files of an earlier installer, and especially its ticket, must not remain.
    Clear-WinhostInstallerPartition $partition
    $root = Read-WinhostPartitionRoot $partition
    $staged = @{}
    foreach ($file in @(Copy-WinhostImage $image $root)) {
        $staged[$file.path] = $file.sha256
    }
    foreach ($file in @($texts.PSObject.Properties)) {
        $path = $file.Name.Replace('/', '\')
        Write-WinhostVolumeText "$root$path" "$($file.Value)"
        $staged[$path] = Measure-WinhostText "$($file.Value)"
    }
    # The hash is computed from what winhost writes and not from what is read back: others may write there until it is used.
    $record.content = Measure-WinhostInstallerFiles $staged
    $record.complete = $true
    Write-WinhostRecord 'ubuntu' 'ubuntu' $record
    $record
}

function ConvertFrom-WinhostPackedFiles {
    param([string]$Packed)
    $texts = $null
    try {
        $texts = ConvertFrom-Json -InputObject ([System.Text.Encoding]::UTF8.GetString((Expand-WinhostGzip $Packed))) -ErrorAction Stop
    }
    catch {
        $null = $_
    }
    if ($texts -isnot [System.Management.Automation.PSCustomObject]) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'files is JSON, as gzip in base64.'
    }
    foreach ($file in @($texts.PSObject.Properties)) {
        # Paths are relative to the partition's root and must not leave it.
        if ($file.Name -cnotmatch '\A[A-Za-z0-9._-]{1,64}(/[A-Za-z0-9._-]{1,64}){0,4}\z' -or $file.Name -match '(\A|/)\.\.?(/|\z)' -or $file.Value -isnot [string]) {
            Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'files are texts by their paths.'
        }
    }
    $texts
}

function Copy-WinhostImage {
    param([string]$Image, [string]$Root)
    Dismount-WinhostImage $Image
    $mounted = Mount-DiskImage -ImagePath $Image -StorageType ISO -Access ReadOnly -NoDriveLetter -PassThru -ErrorAction Stop
    try {
        $source = Wait-WinhostImageVolume $mounted
        $files = @(Read-WinhostVolumeFiles $source)
        if (@(foreach ($file in $files) { $file.path }) -notcontains 'casper\vmlinuz') {
            Stop-Winhost 'Winhost.NoInstaller' 'InvalidData' 'This image is not an installer of Ubuntu Server: it has no casper\vmlinuz.'
        }
        foreach ($file in $files) {
            Add-WinhostVolumeFolder "$Root$($file.path)"
            Copy-WinhostVolumeFile "$source$($file.path)" "$Root$($file.path)"
        }
    }
    catch {
        # If this fails, the image is dismounted before its next use.
        Invoke-WinhostBestEffort "$Image could not be dismounted" { Dismount-WinhostImage $Image }
        throw
    }
    Dismount-WinhostImage $Image
    $files
}

function Wait-WinhostImageVolume {
    param($Mounted)
    # The volume appears some time after the cmdlet has returned.
    for ($tried = 0; $tried -lt 30; $tried++) {
        foreach ($volume in @(Get-Volume -DiskImage $Mounted -ErrorAction Stop)) {
            if ("$($volume.Path)" -ne '') {
                return "$($volume.Path)"
            }
        }
        Start-Sleep -Seconds 1 -ErrorAction Stop
    }
    Stop-Winhost 'Winhost.NoVolume' 'DeviceError' 'Windows mounted the image, and shows no volume of it.'
}

function Dismount-WinhostImage {
    param([string]$Image)
    # An interrupted run leaves the image mounted, and its file could not be deleted then.
    foreach ($found in @(Get-DiskImage -ImagePath $Image -StorageType ISO -ErrorAction Stop)) {
        if ($found.Attached) {
            $null = Dismount-DiskImage -ImagePath $Image -StorageType ISO -Confirm:$false -ErrorAction Stop
        }
    }
}

function Write-WinhostVolumeText {
    param([string]$Path, [string]$Text)
    # Writes the file in a folder of administrators first, because .NET refuses paths of volumes without a drive letter.
    $folder = Join-WinhostInstallerFolder
    Initialize-WinhostFolder $folder 'ours'
    $ended = $false
    try {
        Write-WinhostFile "$folder\text" ([System.Text.Encoding]::UTF8.GetBytes($Text))
        Add-WinhostVolumeFolder $Path
        Copy-WinhostVolumeFile "$folder\text" $Path
        $ended = $true
    }
    finally {
        Invoke-WinhostCleanup $ended "$folder could not be removed" { Remove-WinhostFolder $folder }
    }
}

function Join-WinhostInstallerFolder {
    "$(Read-WinhostDataFolder)\installer"
}

# ---- the host key and the ticket

function Write-WinhostInstallerKey {
    param($Record, $Desired, $How)
    # The host key is recorded before the installer can fetch it, because the new system is recognized by it.
    if (Test-WinhostDesired $Desired 'host_key') {
        $Record.host_key = $Desired.host_key
        Write-WinhostRecord 'ubuntu' 'ubuntu' $Record
    }
    if (-not (Test-WinhostDesired $Desired 'ticket')) {
        return
    }
    $partition = Find-WinhostInstallerPartition "$($Record.partition)"
    if ($null -eq $partition) {
        Stop-Winhost 'Winhost.WrongState' 'ObjectNotFound' 'The partition of the installer is not there any more.'
    }
    $path = "$(Read-WinhostPartitionRoot $partition)$script:WinhostTicket"
    if ($null -eq $Desired.ticket) {
        Unprotect-WinhostPartition $partition
        if ($null -ne (Read-WinhostVolumeHash $path)) {
            Remove-WinhostVolumeFile $path
        }
        return
    }
    $ticket = "$(Read-WinhostField $How 'secret')"
    if ($ticket.Length -gt 4096 -or (Measure-WinhostText $ticket) -cne $Desired.ticket) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'The ticket is another than its SHA-256 says.'
    }
    Unprotect-WinhostPartition $partition
    Write-WinhostVolumeText $path $ticket
    Protect-WinhostPartition $partition
    Assert-WinhostInstallerFiles $partition "$($Record.content)" $Desired.ticket
}

function Assert-WinhostInstallerFiles {
    param($Partition, [string]$Content, [string]$Ticket)
    # Until now, any user could write to the partition. The firmware must start exactly what winhost wrote.
    $staged = @{}
    foreach ($file in @(Read-WinhostVolumeFiles (Read-WinhostPartitionRoot $Partition))) {
        # Windows stores its own data on each volume, which the installer does not read.
        if ($file.path -notlike 'System Volume Information\*') {
            $staged[$file.path] = $file.sha256
        }
    }
    $handed = $staged[$script:WinhostTicket] -ceq $Ticket
    $staged.Remove($script:WinhostTicket)
    if (-not $handed -or (Measure-WinhostInstallerFiles $staged) -cne $Content) {
        Stop-Winhost 'Winhost.NotAsStaged' 'InvalidData' "Files on the installer's partition are others than winhost put there."
    }
}

function Measure-WinhostInstallerFiles {
    param($Files)
    # Returns one hash of all paths (in lower case, because the file system ignores case) and contents.
    $lines = [string[]]@(foreach ($path in @($Files.Keys)) { "$($path.ToLowerInvariant()) $($Files[$path])" })
    [System.Array]::Sort($lines, [System.StringComparer]::Ordinal)
    Measure-WinhostText ($lines -join "`n")
}

# ---- removing

function Remove-WinhostInstaller {
    param($Record)
    if ($null -eq $Record) {
        return
    }
    $image = "$(Read-WinhostDataFolder)\files\$($Record.image)"
    if (Test-WinhostFile $image) {
        Dismount-WinhostImage $image
    }
    $partition = Find-WinhostInstallerPartition "$($Record.partition)"
    if ($null -ne $partition) {
        Clear-WinhostInstallerPartition $partition
    }
    # An interrupted run may have left this folder with a ticket in it.
    Remove-WinhostFolder (Join-WinhostInstallerFolder)
    Write-WinhostRecord 'ubuntu' 'ubuntu' $null
}

function Clear-WinhostInstallerPartition {
    param($Partition)
    Unprotect-WinhostPartition $Partition
    $root = Read-WinhostPartitionRoot $Partition
    foreach ($name in @(Read-WinhostVolumeNames $root)) {
        # The data that Windows stores on each volume is kept.
        if ($name -notlike 'System Volume Information\*') {
            Remove-WinhostVolumeFile "$root$name"
        }
    }
}
