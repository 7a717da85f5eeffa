# Files that are read and written as a whole, folders that only administrators can change, and paths of Windows.
# ---- files

function Read-WinhostFile {
    param([string]$Path)
    # Returns the bytes of a file, or nothing if there is none. Neither the file nor its folder may be a link: both are
    # checked before and after reading.
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

function Write-WinhostJson {
    param([string]$Path, $Document)
    $json = ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $Document -Depth 5 -Compress -ErrorAction Stop)
    Write-WinhostFile $Path ([System.Text.Encoding]::ASCII.GetBytes($json))
}

function Read-WinhostBytes {
    param([string]$Path)
    # A file that is being replaced is missing for a moment, so check twice.
    if ($null -eq (Read-WinhostAttributes $Path)) {
        Wait-WinhostReplacement
    }
    if ($null -ne (Read-WinhostAttributes $Path)) {
        , [System.IO.File]::ReadAllBytes($Path)
    }
}

function Read-WinhostAttributes {
    param([string]$Path)
    # Returns the attributes of a file or folder, or nothing if there is none. .NET's Exists is not used, because it also
    # returns false if access is denied.
    try {
        [System.IO.File]::GetAttributes($Path)
    }
    catch [System.IO.FileNotFoundException], [System.IO.DirectoryNotFoundException] {
        return
    }
}

function Wait-WinhostReplacement {
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
    # Returns the folder of a file. .NET cannot split such a path outside Windows.
    $Path.Substring(0, $Path.LastIndexOfAny([char[]]'\/'))
}

function Write-WinhostFile {
    param([string]$Path, [byte[]]$Bytes)
    # Writes a temporary file next to the file and then replaces it, so that readers see the old or the new file. The file
    # keeps its permissions; a new file gets those of its folder.
    $beside = "$Path.$([System.Guid]::NewGuid().ToString('N')).new"
    $there = $null -ne (Read-WinhostAttributes $Path)
    $stream = New-Object -TypeName System.IO.FileStream -ArgumentList $beside, ([System.IO.FileMode]::CreateNew)
    try {
        try {
            $stream.Write($Bytes, 0, $Bytes.Length)
            # Flush to the disk: a power cut must not leave the name without its bytes.
            $stream.Flush($true)
        }
        finally {
            $stream.Dispose()
        }
        if ($there) {
            Move-WinhostReplacement $beside $Path
        }
        else {
            [System.IO.File]::Move($beside, $Path)
        }
    }
    catch {
        # Remove the new file: it may hold a key, and a retry writes another one. Keep it if Windows has removed the old
        # file already, so that nothing is lost.
        Invoke-WinhostBestEffort "$beside could not be removed" {
            if (-not $there -or $null -ne (Read-WinhostAttributes $Path)) {
                [System.IO.File]::Delete($beside)
            }
        }
        throw
    }
}

function Move-WinhostReplacement {
    param([string]$From, [string]$Path)
    [System.IO.File]::Replace($From, $Path, [System.Management.Automation.Language.NullString]::Value)
}

function Remove-WinhostFile {
    param([string]$Path)
    # Removes a file, if there is one. Delete alone fails if the folder is missing.
    if ($null -ne (Read-WinhostAttributes $Path)) {
        [System.IO.File]::Delete($Path)
    }
}

function Read-WinhostFileTime {
    param([string]$Path)
    # Returns the Unix time of the last write, or nothing if there is no file.
    if ($null -eq (Read-WinhostAttributes $Path)) {
        return $null
    }
    # The kind must be an enumeration value: PowerShell would convert a text to milliseconds, and fail.
    $epoch = New-Object -TypeName System.DateTime -ArgumentList 1970, 1, 1, 0, 0, 0, ([System.DateTimeKind]::Utc)
    [long][Math]::Floor(([System.IO.File]::GetLastWriteTimeUtc($Path) - $epoch).TotalSeconds)
}

# ---- folders

$script:WinhostOnlyAdministrators = 'O:BAD:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)'
$script:WinhostOnlyAdministratorsFile = 'O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)'
# Further access rights by the use of a folder. everybody, read: all users, or one account, can read its files. answered:
# the account can write to files that winhost creates, but can neither create nor remove any. kept: the account can
# create, change and remove files. machines: VMs can traverse the folder to their own files.
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
    # Creates the folder if it is missing, with rights for administrators, the system and the accounts that its use names.
    # Below %ProgramData% any user could have created it first, and could keep a handle or files that later permissions
    # do not affect: such a folder is never used.
    $rights = "$script:WinhostOnlyAdministrators$($script:WinhostFolderUses[$Use])".Replace('SID', $Sid)
    $made = -not (Test-WinhostFolder $Path)
    if ($made) {
        Add-WinhostFolder $Path $rights
    }
    Assert-WinhostOwnFolder $Path
    # An account that can write there could replace the folder by a link, so that the rights would be set elsewhere.
    if (-not $made -and $Use -ne 'kept') {
        Write-WinhostFolderRights $Path $rights
        Assert-WinhostOwnFolder $Path
    }
}

function Initialize-WinhostDataFolder {
    param([string[]]$Below)
    # Creates the folder of winhost's data and nested folders below it.
    $path = Read-WinhostDataFolder
    Initialize-WinhostFolder $path 'ours'
    foreach ($name in $Below) {
        $path = "$path\$name"
        Initialize-WinhostFolder $path 'ours'
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
    # Tests whether the folder exists and Initialize-WinhostFolder would use it.
    (Test-WinhostFolder $Path) -and -not (Test-WinhostLink $Path) -and (Test-WinhostOwner (Read-WinhostOwner $Path))
}

function Test-WinhostFolder {
    param([string]$Path)
    Test-WinhostAttribute $Path 'Directory'
}

function Test-WinhostLink {
    param([string]$Path)
    # True for a symbolic link, a junction or another reparse point; false if the path does not exist.
    Test-WinhostAttribute $Path 'ReparsePoint'
}

function Test-WinhostAttribute {
    param([string]$Path, [string]$Name)
    $found = Read-WinhostAttributes $Path
    $null -ne $found -and [bool]($found -band [System.IO.FileAttributes]$Name)
}

function Add-WinhostFolder {
    param([string]$Path, [string]$Rights)
    # Creates the folder with its rights at once, so that others cannot write to it in between.
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
    # Returns the SID, because the name is localized.
    $acl = Get-Acl -LiteralPath $Path -ErrorAction Stop
    $acl.GetOwner([System.Security.Principal.SecurityIdentifier]).Value
}

function Test-WinhostOwner {
    param([string]$Sid)
    # True for the system, the administrators, and the account that runs this process.
    @('S-1-5-18', 'S-1-5-32-544', (Read-WinhostOwnSid)) -ccontains $Sid
}

function Read-WinhostOwnSid {
    [System.Security.Principal.WindowsIdentity]::GetCurrent().User.Value
}

function Remove-WinhostFolder {
    param([string]$Path)
    # Deletes the folder with its content. Only for folders in which only administrators can create files.
    if (Test-WinhostFolder $Path) {
        [System.IO.Directory]::Delete($Path, $true)
    }
}

function Remove-WinhostEmptyFolder {
    param([string]$Path)
    # Removes the folder if it is empty, and returns whether it is removed or missing. Of a link, only the link is removed.
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

# ---- a file into which an account writes its answer

function Open-WinhostAnswerFile {
    param([string]$Path)
    # Creates the file and keeps it open, so that this very file is read whatever happens to its name. It is deleted when
    # this process closes it or ends.
    $mode = [System.IO.FileMode]::CreateNew
    $access = [System.IO.FileAccess]::ReadWrite
    $share = [System.IO.FileShare]'ReadWrite, Delete'
    $goes = [System.IO.FileOptions]::DeleteOnClose
    New-Object -TypeName System.IO.FileStream -ArgumentList $Path, $mode, $access, $share, 4096, $goes
}

function Read-WinhostAnswerFile {
    param($Stream)
    # Returns the text when its line is complete; nothing before that.
    $null = $Stream.Seek(0, 'Begin')
    $memory = New-Object -TypeName System.IO.MemoryStream
    $Stream.CopyTo($memory)
    $text = [System.Text.Encoding]::UTF8.GetString($memory.ToArray())
    if ($text.EndsWith("`n", [System.StringComparison]::Ordinal)) {
        $text
    }
}

function Test-WinhostEmptyPath {
    param([string]$Path)
    # True if the path does not exist or is an empty folder.
    $found = Read-WinhostAttributes $Path
    if ($null -eq $found) {
        return $true
    }
    (Test-WinhostFolder $Path) -and @([System.IO.Directory]::GetFileSystemEntries($Path)).Count -eq 0
}

# ---- paths

function Read-WinhostProgramDataFolder {
    [System.Environment]::GetFolderPath('CommonApplicationData')
}

function Read-WinhostDataFolder {
    "$(Read-WinhostProgramDataFolder)\winhost"
}

function Read-WinhostSystemFolder {
    [System.Environment]::SystemDirectory
}

function Read-WinhostTemporaryFolder {
    # The temporary folder of Windows: users cannot list it, and its path contains no blank.
    "$([System.Environment]::GetFolderPath('Windows'))\Temp"
}
