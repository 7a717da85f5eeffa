# key {sha256: text, name: text, source: https address or path or ./name}   state {present: bool or null}; set: present
# send {at: bytes, bytes: base64} or {at: bytes, from: http address, seconds: int}   {received: bytes, sha256 of them where nothing is sent}; of ./name, a file beside the plan;
# present is null while only a part of it is here
$script:WinhostRecord = 'SOFTWARE\winhost'
# Where ./name lies, for scripts that a person runs on the host itself; over the wire it was sent before.
$script:WinhostBeside = $null

function Get-WinhostStagedFile {
    param($Key)
    # Whoever may not look into the folder would take everything for absent.
    Assert-WinhostAdministrator
    if ($null -ne $Key -or (Test-WinhostNoted)) {
        Assert-WinhostSent 'Read-WinhostStagedFiles'
        Read-WinhostStagedFiles $Key
    }
}

function Read-WinhostStagedFiles {
    param($Key)
    foreach ($file in @(Find-WinhostStagedFiles "$(Read-WinhostField $Key 'sha256')")) {
        @{ key = @{ sha256 = $file.sha256; name = $file.name; source = $file.source }; state = @{ present = $true } }
    }
    foreach ($file in @(Find-WinhostStagedRecords 'part' "$(Read-WinhostField $Key 'sha256')")) {
        @{ key = @{ sha256 = $file.sha256; name = $file.name; source = $file.source }; state = @{ present = $null } }
    }
    if ($null -ne $Key) {
        $sha256 = Read-WinhostField $Key 'sha256'
        $name = Read-WinhostField $Key 'name'
        $source = Read-WinhostField $Key 'source'
        @{ key = @{ sha256 = $sha256; name = $name; source = $source }; state = @{ present = $false } }
    }
}

function Find-WinhostStagedFiles {
    param([string]$Sha256)
    # Those that winhost brought and that still are what they were; of one hash, or of every one.
    foreach ($file in @(Find-WinhostStagedRecords 'file' $Sha256)) {
        if ((Read-WinhostHash (Join-WinhostStagedPath $file)) -eq $file.sha256) {
            $file
        }
    }
}

function Find-WinhostStagedRecords {
    param([string]$Kind, [string]$Sha256)
    # What winhost noted of whole files, or of those of which a part was sent.
    $record = Open-WinhostRegistry $script:WinhostRecord
    if ($null -eq $record) {
        return
    }
    foreach ($entry in @($record.GetValueNames() | Sort-Object)) {
        if ($entry -cnotmatch '^(file|part) ([0-9a-f]{64})-([A-Za-z0-9._-]+)\z' -or $Matches[1] -cne $Kind) {
            continue
        }
        $file = @{ sha256 = $Matches[2]; name = $Matches[3]; source = "$($record.GetValue($entry))" }
        if ($Sha256 -eq '' -or (Test-WinhostText $Sha256 $file.sha256 'OrdinalIgnoreCase')) {
            $file
        }
    }
    $record.Close()
}

function Find-WinhostStagedFile {
    param([string]$Sha256)
    # For what is done with a file: its path, as long as it still is what it was.
    foreach ($file in @(Find-WinhostStagedFiles $Sha256)) {
        return Join-WinhostStagedPath $file
    }
    Stop-Winhost 'Winhost.NotStaged' 'ObjectNotFound' "No file with SHA-256 $Sha256 was brought to this host."
}

function Join-WinhostStagedPath {
    param($File)
    "$(Read-WinhostProgramData)\winhost\files\$($File.sha256)-$($File.name)"
}

function Set-WinhostStagedFile {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('present')
    Assert-WinhostStagedKey $Key
    Assert-WinhostFlags $Desired @('present')
    $path = Join-WinhostStagedPath $Key
    if ($Desired.present) {
        Initialize-WinhostStaging
        Receive-WinhostFile $Key $path
        Write-WinhostRegistry $script:WinhostRecord "file $($Key.sha256)-$($Key.name)" $Key.source
    }
    else {
        Remove-WinhostStagedFile $Key $path
    }
    Remove-WinhostPart $Key $path
}

function Send-WinhostStagedFile {
    param($Key, $Piece)
    Assert-WinhostStagedKey $Key
    if ("$($Key.source)" -cnotlike './*') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'Only a file that lies beside the plan, as ./name, is sent.'
    }
    $part = "$(Join-WinhostStagedPath $Key).part"
    $received = Read-WinhostLength $part
    if ($null -eq $Piece) {
        return @{ received = $received; sha256 = Read-WinhostHash $part }
    }
    $at = Read-WinhostField $Piece 'at'
    $from = Read-WinhostField $Piece 'from'
    $bytes = ConvertFrom-WinhostBase64 (Read-WinhostField $Piece 'bytes')
    if (($null -eq $bytes -and $null -eq $from) -or ($at -isnot [int] -and $at -isnot [long])) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A piece says at which byte it begins, and what it holds as base64 or where it is.'
    }
    if ($at -eq 0) {
        # Noted first: whatever comes between, what is here can be told and taken away.
        Initialize-WinhostStaging
        Write-WinhostRegistry $script:WinhostRecord "part $($Key.sha256)-$($Key.name)" $Key.source
    }
    elseif ($at -ne $received) {
        Stop-Winhost 'Winhost.OutOfStep' 'InvalidOperation' "$received bytes of it are here, and this piece begins at $at."
    }
    if ($null -ne $from) {
        if ($at -eq 0) {
            Add-WinhostPiece $part $true ([byte[]]@())
        }
        Receive-WinhostPiece $part "$from" (Read-WinhostField $Piece 'seconds')
    }
    else {
        Add-WinhostPiece $part ($at -eq 0) $bytes
    }
    @{ received = Read-WinhostLength $part; sha256 = $null }
}

function Receive-WinhostPiece {
    param([string]$Part, [string]$From, $Seconds)
    # From the computer that runs winhost, for as long as it says: whoever asks again goes on from there. What comes is
    # held against its hash once all of it is here.
    if ($From -cnotmatch '^http://([0-9.]+|\[[0-9a-f:]+\]):[1-9][0-9]{0,4}/[0-9a-f]{64}\z' -or ($Seconds -isnot [int] -and $Seconds -isnot [long]) -or $Seconds -lt 1 -or $Seconds -gt 600) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A file is fetched from an address of winhost, for 1 to 600 seconds.'
    }
    $before = Read-WinhostLength $Part
    $how = @('--fail', '--silent', '--show-error', '--noproxy', '*', '--proto', '=http', '--connect-timeout', '10', '--max-time', "$Seconds")
    $ended = Invoke-WinhostNative 'curl.exe' ($how + @('--continue-at', '-', '--output', $Part, $From)) ($Seconds + 30)
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' 'This Windows has no curl.exe.'
    }
    # 18 and 28: it ended, or its time was over, before all was here.
    if (@(0, 18, 28) -notcontains $ended.code -or (Read-WinhostLength $Part) -eq $before) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "curl.exe could not fetch it: $($ended.code)"
    }
}

function Initialize-WinhostStaging {
    # Administrators alone write there; the account that imports a distro from it reads.
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost" 'ours'
    Initialize-WinhostFolder "$(Read-WinhostProgramData)\winhost\files" 'everybody'
}

function Remove-WinhostStagedFile {
    param($Key, [string]$Path)
    # Only what came from there: the same file may have been brought from somewhere else as well.
    foreach ($file in @(Find-WinhostStagedRecords 'file' $Key.sha256)) {
        if ($file.name -eq $Key.name -and (Test-WinhostText $file.source $Key.source 'OrdinalIgnoreCase')) {
            Remove-WinhostFile $Path
            Write-WinhostRegistry $script:WinhostRecord "file $($file.sha256)-$($file.name)" $null
        }
    }
}

function Remove-WinhostPart {
    param($Key, [string]$Path)
    Remove-WinhostFile "$Path.part"
    Write-WinhostRegistry $script:WinhostRecord "part $($Key.sha256)-$($Key.name)" $null
}

function Assert-WinhostStagedKey {
    param($Key)
    $fits = "$($Key.sha256)" -cmatch '^[0-9a-f]{64}\z'
    $fits = $fits -and "$($Key.name)" -cmatch '^[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]\z'
    $address = '^https://[A-Za-z0-9.:\[\]-]+/[!-~]+\z'
    $local = '^[A-Za-z]:\\[^\x00-\x1f"*/:<>?|]+\z'
    $beside = '^\./[A-Za-z0-9._-]{0,99}[A-Za-z0-9_-]\z'
    if (-not $fits -or "$($Key.source)" -cnotmatch "$address|$local|$beside") {
        $why = 'sha256 is 64 digits in lower case, name of plain characters, source an https address, a path on a drive or ./name.'
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' $why
    }
}

function Receive-WinhostFile {
    param($Key, [string]$Path)
    # Beside it, and only what has the right sum gets the name. What stood there is never trusted, nor kept.
    $beside = "$Path.part"
    $sent = "$($Key.source)" -clike './*' -and $null -eq $script:WinhostBeside
    if ($sent) {
        $found = Read-WinhostHash $beside
    }
    else {
        $found = Copy-WinhostFetched $Key.source $beside
    }
    if ($found -eq '') {
        Stop-Winhost 'Winhost.NotSent' 'ObjectNotFound' 'Nothing of it was sent to this host.'
    }
    if ($found -ne $Key.sha256) {
        Remove-WinhostFile $beside
        if ($sent) {
            Write-WinhostRegistry $script:WinhostRecord "part $($Key.sha256)-$($Key.name)" $null
        }
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' "The source gave SHA-256 $found, and not $($Key.sha256)."
    }
    Remove-WinhostFile $Path
    Move-WinhostFile $beside $Path
}

function Copy-WinhostFetched {
    param([string]$Source, [string]$Path)
    Remove-WinhostFile $Path
    try {
        Copy-WinhostSource $Source $Path
    }
    catch {
        $why = $_.Exception.GetBaseException().Message
        Invoke-WinhostAside "$Path could not be removed" { Remove-WinhostFile $Path }
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "It could not be fetched: $why"
    }
}

# ---- bytes: what reaches past cmdlets

function Read-WinhostHash {
    param([string]$Path)
    if (-not [System.IO.File]::Exists($Path)) {
        return ''
    }
    # This one is of Windows itself, also where its policy (FIPS) forbids those that .NET brings.
    $sha256 = New-Object -TypeName System.Security.Cryptography.SHA256CryptoServiceProvider
    $stream = [System.IO.File]::OpenRead($Path)
    try {
        $sum = $sha256.ComputeHash($stream)
    }
    finally {
        $stream.Dispose()
        $sha256.Dispose()
    }
    [System.BitConverter]::ToString($sum).Replace('-', '').ToLowerInvariant()
}

function Copy-WinhostSource {
    param([string]$Source, [string]$Path)
    # In pieces, because it is larger than memory should hold; gives the sum of what came.
    $from = Open-WinhostSource $Source
    try {
        $to = [System.IO.File]::Open($Path, 'CreateNew', 'Write', 'None')
        try {
            $from.CopyTo($to)
        }
        finally {
            $to.Dispose()
        }
    }
    finally {
        $from.Dispose()
    }
    Read-WinhostHash $Path
}

function Open-WinhostSource {
    param([string]$Source)
    if ($Source -clike './*') {
        $Source = [System.IO.Path]::Combine($script:WinhostBeside, $Source.Substring(2))
    }
    if ($Source -cnotlike 'https://*') {
        return [System.IO.File]::Open($Source, 'Open', 'Read', 'Read')
    }
    # Not every Windows PowerShell asks for it by itself. No credentials are sent, neither to a server nor to a proxy.
    [System.Net.ServicePointManager]::SecurityProtocol = 'Tls12'
    $request = [System.Net.WebRequest]::Create($Source)
    $request.Timeout = 60000
    $request.ReadWriteTimeout = 60000
    $response = $request.GetResponse()
    if ($response.ResponseUri.Scheme -ne 'https') {
        $response.Dispose()
        Stop-Winhost 'Winhost.NotFetched' 'SecurityError' "The source redirects from https to $($response.ResponseUri.Scheme)."
    }
    $response.GetResponseStream()
}

function Move-WinhostFile {
    param([string]$Path, [string]$Target)
    [System.IO.File]::Move($Path, $Target)
}

function Read-WinhostLength {
    param([string]$Path)
    # In bytes; 0 where there is none.
    if (-not [System.IO.File]::Exists($Path)) {
        return 0
    }
    (New-Object -TypeName System.IO.FileInfo -ArgumentList $Path).Length
}

function Add-WinhostPiece {
    param([string]$Path, [bool]$Restart, [byte[]]$Bytes)
    $how = 'Append'
    if ($Restart) {
        $how = 'Create'
    }
    $stream = [System.IO.File]::Open($Path, $how, 'Write', 'None')
    try {
        $stream.Write($Bytes, 0, $Bytes.Length)
    }
    finally {
        $stream.Dispose()
    }
}

function ConvertFrom-WinhostBase64 {
    param($Text)
    # Nothing where it is none. The comma keeps one byte a list of one.
    if ($Text -isnot [string]) {
        return
    }
    try {
        , [System.Convert]::FromBase64String($Text)
    }
    catch [System.FormatException] {
        return
    }
}
