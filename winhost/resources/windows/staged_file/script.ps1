# key {sha256: text, name: text, source: https address or path or ./name}   state {present: bool or null}; set: present
# send {at: bytes, bytes: base64} or {at: bytes, from: address, seconds: int}   {received: bytes, sha256 of them where nothing is sent, whole: bytes or null};
# bytes, or from an http address: for ./name, a file next to the plan; from the source: for an https address. present is null while only a part was received
$script:WinhostRecordsKey = 'SOFTWARE\winhost'
# The folder of ./name, for scripts that a user runs on the host itself. Otherwise, the file was sent before.
$script:WinhostPlanFolder = $null
# Whether such scripts show the progress of a copy. Otherwise, files are sent in slices.
$script:WinhostShowsProgress = $false

function Get-WinhostStagedFile {
    param($Key)
    # For a user who cannot read the folder, every file would look absent.
    Assert-WinhostAdministrator
    if ($null -ne $Key -or (Test-WinhostRecords)) {
        Assert-WinhostPart 'Read-WinhostStagedFiles'
        Read-WinhostStagedFiles $Key
    }
}

function Read-WinhostStagedFiles {
    param($Key)
    $sha256 = Read-WinhostField $Key 'sha256'
    foreach ($file in @(Find-WinhostStagedFiles $sha256)) {
        @{ key = @{ sha256 = $file.sha256; name = $file.name; source = $file.source }; state = @{ present = $true } }
    }
    foreach ($file in @(Find-WinhostStagedRecords 'part' $sha256)) {
        @{ key = @{ sha256 = $file.sha256; name = $file.name; source = $file.source }; state = @{ present = $null } }
    }
    if ($null -ne $Key) {
        $name = Read-WinhostField $Key 'name'
        $source = Read-WinhostField $Key 'source'
        @{ key = @{ sha256 = $sha256; name = $name; source = $source }; state = @{ present = $false } }
    }
}

function Find-WinhostStagedFiles {
    param([string]$Sha256)
    # Returns the files that winhost copied and whose hash is still right; all of them, or those with one hash.
    foreach ($file in @(Find-WinhostStagedRecords 'file' $Sha256)) {
        if ((Read-WinhostHash (Join-WinhostStagedPath $file)) -eq $file.sha256) {
            $file
        }
    }
}

function Find-WinhostStagedRecords {
    param([string]$Kind, [string]$Sha256)
    # Returns the records of complete files (file) or of partially received files (part).
    $record = Open-WinhostRegistry $script:WinhostRecordsKey
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
    # Returns the path of the file with this hash.
    foreach ($file in @(Find-WinhostStagedFiles $Sha256)) {
        return Join-WinhostStagedPath $file
    }
    Stop-Winhost 'Winhost.NotStaged' 'ObjectNotFound' "No file with SHA-256 $Sha256 was brought to this host."
}

function Join-WinhostStagedPath {
    param($File)
    "$(Read-WinhostDataFolder)\files\$($File.sha256)-$($File.name)"
}

function Set-WinhostStagedFile {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('present')
    Assert-WinhostStagedKey $Key
    Assert-WinhostBoolean $Desired @('present')
    $path = Join-WinhostStagedPath $Key
    if ($Desired.present) {
        Initialize-WinhostStaging
        Receive-WinhostFile $Key $path
        Write-WinhostRegistry $script:WinhostRecordsKey "file $($Key.sha256)-$($Key.name)" $Key.source
    }
    else {
        Remove-WinhostStagedFile $Key $path
    }
    Remove-WinhostPart $Key $path
}

function Send-WinhostStagedFile {
    param($Key, $Piece)
    Assert-WinhostStagedKey $Key
    $fetched = "$($Key.source)" -clike 'https://*'
    if (-not $fetched -and "$($Key.source)" -cnotlike './*') {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'Only a file that lies beside the plan, as ./name, or at an https address comes in pieces.'
    }
    $part = "$(Join-WinhostStagedPath $Key).part"
    $received = Read-WinhostLength $part
    if ($null -eq $Piece) {
        if ($fetched) {
            return @{ received = $received; sha256 = $null; whole = (Read-WinhostVersion $Key).whole }
        }
        return @{ received = $received; sha256 = Read-WinhostHash $part; whole = $null }
    }
    $at = Read-WinhostField $Piece 'at'
    $from = Read-WinhostField $Piece 'from'
    $bytes = ConvertFrom-WinhostBase64 (Read-WinhostField $Piece 'bytes')
    if (($null -eq $bytes -and $null -eq $from) -or ($at -isnot [int] -and $at -isnot [long])) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A piece says at which byte it begins, and what it holds as base64 or where it is.'
    }
    if ($null -ne $from) {
        Assert-WinhostPieceSource $Key $fetched $from (Read-WinhostField $Piece 'seconds')
    }
    elseif ($fetched) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'What is at an https address is fetched from there.'
    }
    if ($at -eq 0) {
        # The record is written first, so that the received part can always be found and removed.
        Initialize-WinhostStaging
        Write-WinhostRegistry $script:WinhostRecordsKey "part $($Key.sha256)-$($Key.name)" $Key.source
        Write-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)" $null
    }
    elseif ($at -ne $received) {
        Stop-Winhost 'Winhost.OutOfStep' 'InvalidOperation' "$received bytes were received, and this piece begins at $at."
    }
    $whole = $null
    if ($null -eq $from) {
        Add-WinhostPiece $part ($at -eq 0) $bytes
    }
    else {
        if ($at -eq 0) {
            Add-WinhostPiece $part $true ([byte[]]@())
        }
        if ($fetched) {
            $whole = Receive-WinhostFromSource $Key $part $Piece.seconds
        }
        else {
            Receive-WinhostPiece $part "$from" $Piece.seconds
        }
    }
    @{ received = Read-WinhostLength $part; sha256 = $null; whole = $whole }
}

function Assert-WinhostPieceSource {
    param($Key, [bool]$Fetched, $From, $Seconds)
    $fits = "$From" -cmatch '^http://([0-9.]+|\[[0-9a-f:]+\]):[1-9][0-9]{0,4}/[0-9a-f]{64}\z'
    if ($Fetched) {
        $fits = "$From" -ceq "$($Key.source)"
    }
    if (-not $fits -or ($Seconds -isnot [int] -and $Seconds -isnot [long]) -or $Seconds -lt 1 -or $Seconds -gt 600) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'A file is fetched from an address of winhost or from its source, for 1 to 600 seconds.'
    }
}

function Read-WinhostVersion {
    param($Key)
    # Returns what the server reported about the file: its length, and its ETag or date.
    $version = "$(Read-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)")"
    $whole = $null
    if ($version -cmatch '^([0-9]+) ') {
        $whole = [long]$Matches[1]
    }
    @{ text = $version; whole = $whole }
}

function Receive-WinhostFromSource {
    param($Key, [string]$Part, [int]$Seconds)
    # Downloads from the source for this many seconds. Returns the length of the whole file, if it is known.
    $version = Read-WinhostVersion $Key
    if ($null -ne $version.whole -and $version.whole -eq (Read-WinhostLength $Part)) {
        return $version.whole
    }
    $before = Read-WinhostLength $Part
    try {
        $slice = Receive-WinhostSlice $Key.source $Part $version.text $Seconds
    }
    catch {
        $why = $_.Exception.GetBaseException().Message
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "It could not be fetched: $why"
    }
    if (-not $slice.resumes) {
        Stop-Winhost 'Winhost.NoRange' 'NotImplemented' 'Its server sends all of it or nothing, and never the rest.'
    }
    if (-not (Test-WinhostText $slice.version $version.text 'Ordinal')) {
        Write-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)" $slice.version
    }
    elseif ((Read-WinhostLength $Part) -eq $before) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "Nothing more of it came: $($slice.why)"
    }
    $slice.whole
}

function Receive-WinhostPiece {
    param([string]$Part, [string]$From, $Seconds)
    # Downloads from winhost's computer for this many seconds. A further call continues from there. The hash is checked
    # when the file is complete.
    $before = Read-WinhostLength $Part
    $how = @('--fail', '--silent', '--show-error', '--noproxy', '*', '--proto', '=http', '--connect-timeout', '10', '--max-time', "$Seconds")
    $ended = Invoke-WinhostNative 'curl.exe' ($how + @('--continue-at', '-', '--output', $Part, $From)) ($Seconds + 30)
    if ($null -eq $ended) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' 'This Windows has no curl.exe.'
    }
    # 18: the connection ended early; 28: the time was over before the file was complete.
    if (@(0, 18, 28) -notcontains $ended.code -or (Read-WinhostLength $Part) -eq $before) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "curl.exe could not fetch it: $($ended.code)"
    }
}

function Initialize-WinhostStaging {
    # Only administrators can write there; the account that imports a distro reads the image.
    Initialize-WinhostDataFolder
    Initialize-WinhostFolder "$(Read-WinhostDataFolder)\files" 'everybody'
}

function Remove-WinhostStagedFile {
    param($Key, [string]$Path)
    # Removes only the file from this source: the same file may have been copied from another source as well.
    foreach ($file in @(Find-WinhostStagedRecords 'file' $Key.sha256)) {
        if ($file.name -eq $Key.name -and (Test-WinhostText $file.source $Key.source 'OrdinalIgnoreCase')) {
            Remove-WinhostFile $Path
            Write-WinhostRegistry $script:WinhostRecordsKey "file $($file.sha256)-$($file.name)" $null
        }
    }
}

function Remove-WinhostPart {
    param($Key, [string]$Path)
    Remove-WinhostFile "$Path.part"
    foreach ($kind in @('version', 'part')) {
        Write-WinhostRegistry $script:WinhostRecordsKey "$kind $($Key.sha256)-$($Key.name)" $null
    }
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
    # Only a file with the right hash gets the final name. An existing file of that name is replaced without being trusted.
    $part = "$Path.part"
    $sent = "$($Key.source)" -clike './*' -and $null -eq $script:WinhostPlanFolder
    $found = Read-WinhostHash $part
    if (-not $sent -and $found -ne $Key.sha256) {
        # The file was not received in pieces, or the pieces are wrong.
        $found = Receive-WinhostSource $Key.source $part
    }
    if ($found -eq '') {
        Stop-Winhost 'Winhost.NotSent' 'ObjectNotFound' 'Nothing of it was sent to this host.'
    }
    if ($found -ne $Key.sha256) {
        Remove-WinhostPart $Key $Path
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' "The source gave SHA-256 $found, and not $($Key.sha256)."
    }
    Remove-WinhostFile $Path
    Move-WinhostFile $part $Path
}

function Receive-WinhostSource {
    param([string]$Source, [string]$Path)
    Remove-WinhostFile $Path
    try {
        Copy-WinhostSource $Source $Path
    }
    catch {
        $why = $_.Exception.GetBaseException().Message
        Invoke-WinhostBestEffort "$Path could not be removed" { Remove-WinhostFile $Path }
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "It could not be fetched: $why"
    }
}

# ---- bytes, without cmdlets

function Read-WinhostHash {
    param([string]$Path)
    if ($null -eq (Read-WinhostAttributes $Path)) {
        return ''
    }
    $stream = [System.IO.File]::OpenRead($Path)
    try {
        ConvertTo-WinhostDigest $stream
    }
    finally {
        $stream.Dispose()
    }
}

function Copy-WinhostSource {
    param([string]$Source, [string]$Path)
    # Copies as a stream, because the file may be larger than the memory. Returns the hash.
    $found = Open-WinhostSource $Source
    $from = $found.stream
    try {
        $to = [System.IO.File]::Open($Path, 'CreateNew', 'Write', 'None')
        try {
            Copy-WinhostStream $from $to $found.whole
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

function Copy-WinhostStream {
    param($From, $To, [long]$Whole)
    if (-not $script:WinhostShowsProgress) {
        $From.CopyTo($To)
        return
    }
    $buffer = New-Object -TypeName 'byte[]' -ArgumentList 1048576
    $began = Read-WinhostClock
    $told = $began
    $at = [long]0
    while (($came = $From.Read($buffer, 0, $buffer.Length)) -gt 0) {
        $To.Write($buffer, 0, $came)
        $at += $came
        $now = Read-WinhostClock
        if ($now - $told -ge 5) {
            $told = $now
            Write-Host -Object "  $(ConvertTo-WinhostProgress $at $Whole ($now - $began))" -ErrorAction Stop
        }
    }
}

function ConvertTo-WinhostProgress {
    param([long]$At, [long]$Whole, [double]$Seconds)
    # Formats the progress: bytes, rate, and the remaining time if the length of the whole file is known.
    $fixed = [System.Globalization.CultureInfo]::InvariantCulture
    $rate = [Math]::Max(1.0, $At / $Seconds)
    $told = [string]::Format($fixed, '{0:N0} MB, {1:N1} MB/s', ($At / 1e6), ($rate / 1e6))
    if ($Whole -lt $At) {
        return $told
    }
    $left = ($Whole - $At) / $rate
    $time = [string]::Format($fixed, '{0:N0} s', $left)
    if ($left -ge 60) {
        $time = [string]::Format($fixed, '{0:N0} min', ($left / 60))
    }
    [string]::Format($fixed, '{0:N0} of {1:N0} MB, {2:N1} MB/s, {3} left', ($At / 1e6), ($Whole / 1e6), ($rate / 1e6), $time)
}

function Open-WinhostSource {
    param([string]$Source)
    if ($Source -clike './*') {
        $Source = [System.IO.Path]::Combine($script:WinhostPlanFolder, $Source.Substring(2))
    }
    # Returns the stream with its length, which is -1 if the server does not report it.
    if ($Source -cnotlike 'https://*') {
        $stream = [System.IO.File]::Open($Source, 'Open', 'Read', 'Read')
        return @{ stream = $stream; whole = $stream.Length }
    }
    $response = (Open-WinhostAddress $Source 0 60).response
    @{ stream = $response.GetResponseStream(); whole = $response.ContentLength }
}

function Open-WinhostAddress {
    param([string]$Source, [long]$At, [int]$Seconds)
    # Requests the file from byte $At on, if the server supports that. TLS 1.2 is set because not every Windows PowerShell
    # enables it. No credentials are sent, neither to a server nor to a proxy.
    [System.Net.ServicePointManager]::SecurityProtocol = 'Tls12'
    $request = [System.Net.WebRequest]::Create($Source)
    $request.Timeout = 1000 * $Seconds
    $request.ReadWriteTimeout = 1000 * $Seconds
    if ($At -gt 0) {
        $request.AddRange($At)
    }
    try {
        $response = $request.GetResponse()
    }
    catch {
        # 416: the file is shorter now. It is another file, and is downloaded from the beginning.
        $response = Read-WinhostField $_.Exception.GetBaseException() 'Response'
        if ($At -eq 0 -or $null -eq $response -or [int]$response.StatusCode -ne 416) {
            throw
        }
    }
    if ($response.ResponseUri.Scheme -ne 'https') {
        $response.Dispose()
        Stop-Winhost 'Winhost.NotFetched' 'SecurityError' "The source redirects from https to $($response.ResponseUri.Scheme)."
    }
    @{ request = $request; response = $response }
}

function Receive-WinhostSlice {
    param([string]$Source, [string]$Path, [string]$Version, [int]$Seconds)
    # Appends what is received in this many seconds to the file, or starts again if the server has another version by now.
    # Returns that version, the length of the whole file if it is known, and whether the server can resume.
    $until = (Read-WinhostClock) + $Seconds
    $at = [long]0
    if ($Version -ne '') {
        $at = [long](Read-WinhostLength $Path)
    }
    $asked = Open-WinhostAddress $Source $at $Seconds
    $told = Read-WinhostResponse $asked.response
    if ($at -gt 0 -and -not (Test-WinhostText $told.version $Version 'Ordinal')) {
        $asked.request.Abort()
        $at = [long]0
        $asked = Open-WinhostAddress $Source $at $Seconds
        $told = Read-WinhostResponse $asked.response
    }
    $told.resumes = $told.at -eq $at
    try {
        if ($told.resumes) {
            Add-WinhostPiece $Path ($at -eq 0) ([byte[]]@())
            $told.why = Copy-WinhostStreamUntil $asked.response.GetResponseStream() $Path $until
            if ($told.why -eq '' -and $null -eq $told.whole) {
                $told.whole = Read-WinhostLength $Path
            }
        }
    }
    finally {
        # Abort, because closing the response would wait for the rest of the file.
        Invoke-WinhostBestEffort 'The download could not be left' { $asked.request.Abort() }
    }
    $told
}

function Read-WinhostResponse {
    param($Response)
    # Returns from which byte the response continues, the length of the whole file, and its version.
    $told = @{ at = [long]0; whole = $null; why = '' }
    if ([int]$Response.StatusCode -ne 200) {
        $told.at = [long]-1
        if ("$($Response.Headers['Content-Range'])" -cmatch '^bytes ([0-9]+)-[0-9]+/([0-9]+)\z') {
            $told.at = [long]$Matches[1]
            $told.whole = [long]$Matches[2]
        }
    }
    elseif ($Response.ContentLength -ge 0) {
        $told.whole = $Response.ContentLength
    }
    $mark = "$($Response.Headers['ETag'])"
    if ($mark -eq '') {
        $mark = "$($Response.Headers['Last-Modified'])"
    }
    $told.version = "$($told.whole) $mark"
    $told
}

function Copy-WinhostStreamUntil {
    param($From, [string]$Path, [double]$Until)
    # Writes received data until the time is over or the connection breaks. Returns why the file is incomplete, or ''.
    $buffer = New-Object -TypeName 'byte[]' -ArgumentList 1048576
    $to = [System.IO.File]::Open($Path, 'Append', 'Write', 'None')
    try {
        while (($left = [int](1000 * ($Until - (Read-WinhostClock)))) -gt 0) {
            # The timeout of the stream is not used, because not every version of .NET observes it.
            $reading = $From.ReadAsync($buffer, 0, $buffer.Length)
            if (-not $reading.Wait($left)) {
                break
            }
            if ($reading.Result -eq 0) {
                return ''
            }
            $to.Write($buffer, 0, $reading.Result)
        }
        'its time is over'
    }
    catch [System.AggregateException] {
        return $_.Exception.GetBaseException().Message
    }
    finally {
        $to.Dispose()
    }
}

function Move-WinhostFile {
    param([string]$Path, [string]$Target)
    [System.IO.File]::Move($Path, $Target)
}

function Read-WinhostLength {
    param([string]$Path)
    # Returns the length in bytes; 0 if there is no file.
    if ($null -eq (Read-WinhostAttributes $Path)) {
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
    # Returns nothing if the text is not base64. The comma keeps a single byte a list.
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
