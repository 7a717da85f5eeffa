# Files, read and written whole; folders that only administrators change; and where Windows has its own.
# ---- files

function Read-WinhostFile {
    param([string]$Path)
    # Its bytes, or nothing where there is none. A link in a folder of others could lead anywhere: neither it nor its
    # folder may be one, before it is read and after.
    Assert-WinhostNoLink $Path
    $bytes = Read-WinhostBytes $Path
    Assert-WinhostNoLink $Path
    if ($null -ne $bytes) {
        , $bytes
    }
}

function Read-WinhostJson {
    param([string]$Path)
    $bytes = Read-WinhostFile $Path
    if ($null -eq $bytes) {
        return $null
    }
    ConvertFrom-Json -InputObject ([System.Text.Encoding]::UTF8.GetString($bytes)) -ErrorAction Stop
}

function Read-WinhostBytes {
    param([string]$Path)
    # What is just being replaced is not there for a moment: only what is not there twice is not there.
    if ($null -eq (Read-WinhostEntry $Path)) {
        Wait-WinhostGap
    }
    if ($null -ne (Read-WinhostEntry $Path)) {
        , [System.IO.File]::ReadAllBytes($Path)
    }
}

function Read-WinhostEntry {
    param([string]$Path)
    # The attributes of a file or folder; nothing where there is none. .NET's Exists also says no where access is denied.
    try {
        [System.IO.File]::GetAttributes($Path)
    }
    catch [System.IO.FileNotFoundException], [System.IO.DirectoryNotFoundException] {
        return
    }
}

function Wait-WinhostGap {
    [System.Threading.Thread]::Sleep(100)
}

function Assert-WinhostNoLink {
    param([string]$Path)
    if (Test-WinhostLink $Path) {
        Stop-Winhost 'Winhost.NotAFile' 'InvalidType' "$Path is a link."
    }
    $folder = Split-WinhostPath $Path
    if (Test-WinhostLink $folder) {
        Stop-Winhost 'Winhost.NotAFolder' 'InvalidType' "$folder is a link."
    }
}

function Split-WinhostPath {
    param([string]$Path)
    # The folder of a file. Not by .NET, for which there is none where it runs on something else than Windows.
    $Path.Substring(0, $Path.LastIndexOfAny([char[]]'\/'))
}

function Write-WinhostFile {
    param([string]$Path, [byte[]]$Bytes)
    # Beside it, then over it: whoever reads meanwhile sees the one or the other. Its permissions stay; a new one has
    # those of its folder.
    $beside = "$Path.$([System.Guid]::NewGuid().ToString('N')).new"
    $there = $null -ne (Read-WinhostEntry $Path)
    $stream = New-Object -TypeName System.IO.FileStream -ArgumentList $beside, ([System.IO.FileMode]::CreateNew)
    try {
        try {
            $stream.Write($Bytes, 0, $Bytes.Length)
            # To the disk: a power cut must not leave the name without its bytes.
            $stream.Flush($true)
        }
        finally {
            $stream.Dispose()
        }
        if ($there) {
            Move-WinhostOver $beside $Path
        }
        else {
            [System.IO.File]::Move($beside, $Path)
        }
    }
    catch {
        # It may hold a key, and who tries again makes another one. Windows may have taken the old file away by then: so
        # that nothing is lost, the new one stays.
        Invoke-WinhostAside "$beside could not be removed" {
            if (-not $there -or $null -ne (Read-WinhostEntry $Path)) {
                [System.IO.File]::Delete($beside)
            }
        }
        throw
    }
}

function Move-WinhostOver {
    param([string]$From, [string]$Path)
    [System.IO.File]::Replace($From, $Path, [System.Management.Automation.Language.NullString]::Value)
}

function Remove-WinhostFile {
    param([string]$Path)
    # Whether or not it is there; Delete would want at least its folder to be.
    if ($null -ne (Read-WinhostEntry $Path)) {
        [System.IO.File]::Delete($Path)
    }
}

function Read-WinhostFileTime {
    param([string]$Path)
    # When it was written, in seconds of Unix; nothing where there is none.
    if ($null -eq (Read-WinhostEntry $Path)) {
        return $null
    }
    # The kind as an enumeration: of a text PowerShell would make the number of milliseconds, and fail.
    $epoch = New-Object -TypeName System.DateTime -ArgumentList 1970, 1, 1, 0, 0, 0, ([System.DateTimeKind]::Utc)
    [long][Math]::Floor(([System.IO.File]::GetLastWriteTimeUtc($Path) - $epoch).TotalSeconds)
}

# ---- folders

$script:WinhostOnlyAdministrators = 'O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)'
$script:WinhostOnlyAdministratorsFile = 'O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)'
# What else may be done there. By everybody who has logged on, or by one account: reads what we write; answers into files
# that we made, and neither makes nor removes any; keeps what it wants. Of all VMs: comes by, on the way to its own files.
$script:WinhostFolderUses = @{
    ours = ''
    everybody = '(A;OICI;FRFX;;;AU)'
    read = '(A;OI;FRFX;;;SID)'
    answered = '(A;;FRFX;;;SID)(A;OIIO;0x120196;;;SID)'
    kept = '(A;OICI;0x1301bf;;;SID)'
    machines = '(A;CI;0x1200a9;;;S-1-5-83-0)'
}

function Initialize-WinhostFolder {
    param([string]$Path, [string]$Use, [string]$Sid)
    # Made where it is not there, for administrators and the system, and for whom its use names. Below %ProgramData%
    # anybody could have made it first, and keep a handle to it, or files in it, that would outlive all permissions:
    # such a one is never used.
    $rights = "$script:WinhostOnlyAdministrators$($script:WinhostFolderUses[$Use])".Replace('SID', $Sid)
    $made = -not (Test-WinhostFolder $Path)
    if ($made) {
        Add-WinhostFolder $Path $rights
    }
    Assert-WinhostOwnFolder $Path
    # In the hands of an account it may turn into a link at any moment, and rights given then would be given elsewhere.
    if (-not $made -and $Use -ne 'kept') {
        Write-WinhostFolderRights $Path $rights
        Assert-WinhostOwnFolder $Path
    }
}

function Assert-WinhostOwnFolder {
    param([string]$Path)
    if (Test-WinhostLink $Path) {
        Stop-Winhost 'Winhost.NotAFolder' 'InvalidType' "$Path is a link."
    }
    $owner = Read-WinhostOwner $Path
    if (-not (Test-WinhostOwner $owner)) {
        $why = "$Path was made by $owner, who is neither the system nor an administrator. Look into it, and remove it."
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' $why
    }
}

function Test-WinhostOwnFolder {
    param([string]$Path)
    # Whether it is there and Initialize-WinhostFolder would use it.
    (Test-WinhostFolder $Path) -and -not (Test-WinhostLink $Path) -and (Test-WinhostOwner (Read-WinhostOwner $Path))
}

function Test-WinhostFolder {
    param([string]$Path)
    Test-WinhostAttribute $Path 'Directory'
}

function Test-WinhostLink {
    param([string]$Path)
    # A symbolic link, a junction, or anything else that leads elsewhere; not what is not there.
    Test-WinhostAttribute $Path 'ReparsePoint'
}

function Test-WinhostAttribute {
    param([string]$Path, [string]$Name)
    $found = Read-WinhostEntry $Path
    $null -ne $found -and [bool]($found -band [System.IO.FileAttributes]$Name)
}

function Add-WinhostFolder {
    param([string]$Path, [string]$Rights)
    # With its rights at once: there is no moment in which others could put something there.
    $folder = New-Object -TypeName System.IO.DirectoryInfo -ArgumentList $Path
    if ("$($PSVersionTable.PSEdition)" -eq 'Core') {
        [System.IO.FileSystemAclExtensions]::Create($folder, (New-WinhostFolderAcl $Rights))
    }
    else {
        $folder.Create((New-WinhostFolderAcl $Rights))
    }
}

function Write-WinhostFolderRights {
    param([string]$Path, [string]$Rights)
    Set-Acl -LiteralPath $Path -AclObject (New-WinhostFolderAcl $Rights) -ErrorAction Stop
}

function Write-WinhostFileRights {
    param([string]$Path, [string]$Rights)
    $acl = New-Object -TypeName System.Security.AccessControl.FileSecurity
    $acl.SetSecurityDescriptorSddlForm($Rights)
    Set-Acl -LiteralPath $Path -AclObject $acl -ErrorAction Stop
}

function New-WinhostFolderAcl {
    param([string]$Rights)
    $acl = New-Object -TypeName System.Security.AccessControl.DirectorySecurity
    $acl.SetSecurityDescriptorSddlForm($Rights)
    $acl
}

function Read-WinhostOwner {
    param([string]$Path)
    # By SID: its name is in the host's language.
    $acl = Get-Acl -LiteralPath $Path -ErrorAction Stop
    $acl.GetOwner([System.Security.Principal.SecurityIdentifier]).Value
}

function Test-WinhostOwner {
    param([string]$Sid)
    # The system, the administrators, or who asks.
    @('S-1-5-18', 'S-1-5-32-544', (Read-WinhostOwnSid)) -ccontains $Sid
}

function Read-WinhostOwnSid {
    [System.Security.Principal.WindowsIdentity]::GetCurrent().User.Value
}

function Remove-WinhostFolder {
    param([string]$Path)
    # With all that is in it: only of a folder in which nobody but administrators makes anything.
    if (Test-WinhostFolder $Path) {
        [System.IO.Directory]::Delete($Path, $true)
    }
}

function Remove-WinhostEmptyFolder {
    param([string]$Path)
    # Whether it is gone. One with something in it stays; of a link the link goes, and nothing of where it leads.
    if (Test-WinhostFolder $Path) {
        try {
            [System.IO.Directory]::Delete($Path, $false)
        }
        catch [System.IO.IOException] {
            return $false
        }
    }
    $true
}

# ---- a file that somebody else writes into

function Open-WinhostAnswer {
    param([string]$Path)
    # Made by us and never opened again: whatever becomes of its name, what is read is this file. It goes with whoever
    # waits for it, also where that process is ended.
    $mode = [System.IO.FileMode]::CreateNew
    $access = [System.IO.FileAccess]::ReadWrite
    $share = [System.IO.FileShare]'ReadWrite, Delete'
    $goes = [System.IO.FileOptions]::DeleteOnClose
    New-Object -TypeName System.IO.FileStream -ArgumentList $Path, $mode, $access, $share, 4096, $goes
}

function Read-WinhostAnswer {
    param($Stream)
    # Its text, which ends with its line. Nothing before that.
    $null = $Stream.Seek(0, 'Begin')
    $memory = New-Object -TypeName System.IO.MemoryStream
    $Stream.CopyTo($memory)
    $text = [System.Text.Encoding]::UTF8.GetString($memory.ToArray())
    if ($text.EndsWith("`n", [System.StringComparison]::Ordinal)) {
        $text
    }
}

function Test-WinhostEmpty {
    param([string]$Path)
    # No such file, and no such folder with anything in it.
    $found = Read-WinhostEntry $Path
    if ($null -eq $found) {
        return $true
    }
    (Test-WinhostFolder $Path) -and @([System.IO.Directory]::GetFileSystemEntries($Path)).Count -eq 0
}

# ---- places

function Read-WinhostProgramData {
    [System.Environment]::GetFolderPath('CommonApplicationData')
}

function Read-WinhostSystemFolder {
    [System.Environment]::SystemDirectory
}

function Read-WinhostTemporary {
    # Of Windows: nobody can list it, and its name has no blank.
    "$([System.Environment]::GetFolderPath('Windows'))\Temp"
}
