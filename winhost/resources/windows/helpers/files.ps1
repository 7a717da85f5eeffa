# Files, read and written whole; folders that only administrators change; and where Windows has its own.
# ---- files

function Read-WinhostFile {
    param([string]$Path)
    # Its bytes, or nothing where there is none. A link in a folder of others could lead anywhere.
    if (-not [System.IO.File]::Exists($Path)) {
        return $null
    }
    if ([System.IO.File]::GetAttributes($Path) -band [System.IO.FileAttributes]::ReparsePoint) {
        Stop-Winhost 'Winhost.NotAFile' 'InvalidType' "$Path is a link."
    }
    , [System.IO.File]::ReadAllBytes($Path)
}

function Write-WinhostFile {
    param([string]$Path, [byte[]]$Bytes)
    # Beside it, then over it: whoever reads meanwhile sees the one or the other. Its permissions stay; a new one has
    # those of its folder.
    $beside = "$Path.$([System.Guid]::NewGuid().ToString('N')).new"
    [System.IO.File]::WriteAllBytes($beside, $Bytes)
    if ([System.IO.File]::Exists($Path)) {
        [System.IO.File]::Replace($beside, $Path, [System.Management.Automation.Language.NullString]::Value)
    }
    else {
        [System.IO.File]::Move($beside, $Path)
    }
}

function Remove-WinhostFile {
    param([string]$Path)
    # Whether or not it is there; Delete would want at least its folder to be.
    if ([System.IO.File]::Exists($Path)) {
        [System.IO.File]::Delete($Path)
    }
}

function Read-WinhostFileTime {
    param([string]$Path)
    # When it was written, in seconds of Unix; nothing where there is none.
    if (-not [System.IO.File]::Exists($Path)) {
        return $null
    }
    # The kind as an enumeration: of a text PowerShell would make the number of milliseconds, and fail.
    $epoch = New-Object -TypeName System.DateTime -ArgumentList 1970, 1, 1, 0, 0, 0, ([System.DateTimeKind]::Utc)
    [long][Math]::Floor(([System.IO.File]::GetLastWriteTimeUtc($Path) - $epoch).TotalSeconds)
}

# ---- folders

$script:WinhostOnlyAdministrators = 'O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)'

function Initialize-WinhostFolder {
    param([string]$Path, [string]$Who)
    # Made where it is not there, for administrators and the system. Who: 'everybody' may read in it, a SID may change
    # it too. Below %ProgramData% anybody could have made it first, and keep a handle to it, or files in it, that would
    # outlive all permissions: such a one is never used.
    $rights = $script:WinhostOnlyAdministrators
    if ($Who -eq 'everybody') {
        $rights = "$rights(A;OICI;FRFX;;;AU)"
    }
    elseif ($Who -ne '') {
        $rights = "$rights(A;OICI;0x1301bf;;;$Who)"
    }
    if (-not [System.IO.Directory]::Exists($Path)) {
        Add-WinhostFolder $Path $rights
    }
    if ([System.IO.File]::GetAttributes($Path) -band [System.IO.FileAttributes]::ReparsePoint) {
        Stop-Winhost 'Winhost.NotAFolder' 'InvalidType' "$Path is a link."
    }
    $owner = Read-WinhostOwner $Path
    if (-not (Test-WinhostOwner $owner)) {
        $why = "$Path was made by $owner, who is neither the system nor an administrator. Look into it, and remove it."
        Stop-Winhost 'Winhost.NotOurs' 'InvalidOperation' $why
    }
    Write-WinhostFolderRights $Path $rights
}

function Test-WinhostOwnFolder {
    param([string]$Path)
    # Whether it is there and Initialize-WinhostFolder would use it. One that may not be asked after may not be read.
    if (-not [System.IO.Directory]::Exists($Path)) {
        return $false
    }
    if ([System.IO.File]::GetAttributes($Path) -band [System.IO.FileAttributes]::ReparsePoint) {
        return $false
    }
    try {
        Test-WinhostOwner (Read-WinhostOwner $Path)
    }
    catch [System.UnauthorizedAccessException] {
        $false
    }
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
    if ([System.IO.Directory]::Exists($Path)) {
        [System.IO.Directory]::Delete($Path, $true)
    }
}

function Test-WinhostEmpty {
    param([string]$Path)
    # No such file, and no such folder with anything in it.
    if ([System.IO.File]::Exists($Path)) {
        return $false
    }
    -not [System.IO.Directory]::Exists($Path) -or @([System.IO.Directory]::GetFileSystemEntries($Path)).Count -eq 0
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
