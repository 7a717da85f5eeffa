# key {sha256: text, name: text, source: https address or path or ./name}   state {present: bool or null}; set: present
# send {at: bytes, bytes: base64} or {at: bytes, from: address, seconds: int}   {received: bytes, sha256 of them where nothing is sent, whole: bytes or null};
# bytes, and from an http address: of ./name, a file beside the plan; from the source: of an https address. present is null while only a part of it is here
$script:WinhostRecordsKey = 'SOFTWARE\winhost'
# Where ./name lies, for scripts that a person runs on the host itself; over the wire it was sent before.
$script:WinhostPlanFolder = $null
# Whether such a person is told how far a file is; over the wire it comes in slices instead.
$script:WinhostShowsProgress = $false

function Get-WinhostStagedFile {
    param($Key)
    # Whoever may not look into the folder would take everything for absent.
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
    # The files that winhost brought and that still have their hash; all of them, or those of one hash.
    foreach ($file in @(Find-WinhostStagedRecords 'file' $Sha256)) {
        if ((Read-WinhostHash (Join-WinhostStagedPath $file)) -eq $file.sha256) {
            $file
        }
    }
}

function Find-WinhostStagedRecords {
    param([string]$Kind, [string]$Sha256)
    # The records of whole files (file), or of those of which a part is here (part).
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
    # The path of a file, as long as it still has its hash.
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
        # Written first, so that what is here can always be found and removed.
        Initialize-WinhostStaging
        Write-WinhostRegistry $script:WinhostRecordsKey "part $($Key.sha256)-$($Key.name)" $Key.source
        Write-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)" $null
    }
    elseif ($at -ne $received) {
        Stop-Winhost 'Winhost.OutOfStep' 'InvalidOperation' "$received bytes of it are here, and this piece begins at $at."
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
    # What the server said about the file: its length, and its ETag or date.
    $version = "$(Read-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)")"
    $whole = $null
    if ($version -cmatch '^([0-9]+) ') {
        $whole = [long]$Matches[1]
    }
    @{ text = $version; whole = $whole }
}

function Receive-WinhostFromSource {
    param($Key, [string]$Part, [int]$Seconds)
    # Fetches from the source for so many seconds. Returns the length of the whole file, once that is known.
    $version = Read-WinhostVersion $Key
    if ($null -ne $version.whole -and $version.whole -eq (Read-WinhostLength $Part)) {
        return $version.whole
    }
    $before = Read-WinhostLength $Part
    try {
        $told = Receive-WinhostSlice $Key.source $Part $version.text $Seconds
    }
    catch {
        $why = $_.Exception.GetBaseException().Message
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "It could not be fetched: $why"
    }
    if (-not $told.resumes) {
        Stop-Winhost 'Winhost.NoRange' 'NotImplemented' 'Its server sends all of it or nothing, and never the rest.'
    }
    if (-not (Test-WinhostText $told.version $version.text 'Ordinal')) {
        Write-WinhostRegistry $script:WinhostRecordsKey "version $($Key.sha256)-$($Key.name)" $told.version
    }
    elseif ((Read-WinhostLength $Part) -eq $before) {
        Stop-Winhost 'Winhost.NotFetched' 'ReadError' "Nothing more of it came: $($told.why)"
    }
    $told.whole
}

function Receive-WinhostPiece {
    param([string]$Part, [string]$From, $Seconds)
    # From the computer that runs winhost, for as long as it says: whoever asks again goes on from there. What comes is
    # held against its hash once all of it is here.
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
    Initialize-WinhostDataFolder
    Initialize-WinhostFolder "$(Read-WinhostDataFolder)\files" 'everybody'
}

function Remove-WinhostStagedFile {
    param($Key, [string]$Path)
    # Only what came from there: the same file may have been brought from somewhere else as well.
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
    # Written beside the path: only a file with the right hash gets the name. What was there is neither trusted nor
    # kept.
    $beside = "$Path.part"
    $sent = "$($Key.source)" -clike './*' -and $null -eq $script:WinhostPlanFolder
    $found = Read-WinhostHash $beside
    if (-not $sent -and $found -ne $Key.sha256) {
        # It did not come in pieces, or what came is another.
        $found = Receive-WinhostSource $Key.source $beside
    }
    if ($found -eq '') {
        Stop-Winhost 'Winhost.NotSent' 'ObjectNotFound' 'Nothing of it was sent to this host.'
    }
    if ($found -ne $Key.sha256) {
        Remove-WinhostPart $Key $Path
        Stop-Winhost 'Winhost.WrongHash' 'InvalidData' "The source gave SHA-256 $found, and not $($Key.sha256)."
    }
    Remove-WinhostFile $Path
    Move-WinhostFile $beside $Path
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

# ---- bytes: what reaches past cmdlets

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
    # Copies in pieces, because the file may be larger than the memory. Returns its hash.
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
    # The progress in words: bytes, rate, and the time left where the length of the whole file is known.
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
    # With how many bytes it has, -1 where its server does not say that.
    if ($Source -cnotlike 'https://*') {
        $stream = [System.IO.File]::Open($Source, 'Open', 'Read', 'Read')
        return @{ stream = $stream; whole = $stream.Length }
    }
    $response = (Open-WinhostAddress $Source 0 60).response
    @{ stream = $response.GetResponseStream(); whole = $response.ContentLength }
}

function Open-WinhostAddress {
    param([string]$Source, [long]$At, [int]$Seconds)
    # From a byte on, if its server can. Not every Windows PowerShell asks for TLS 1.2 by itself. No credentials are sent,
    # neither to a server nor to a proxy.
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
        # What is shorter now than it was has no such byte: it is another file, and begins again.
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
    # What comes in so many seconds goes to the end of the file, or to its beginning where the server has another version
    # now. Gives that version, how long the whole is, if that is known, and whether the server can go on in the middle.
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
        # Closing it would wait for the rest of the file.
        Invoke-WinhostBestEffort 'The download could not be left' { $asked.request.Abort() }
    }
    $told
}

function Read-WinhostResponse {
    param($Response)
    # From which byte the answer continues, how long the whole file is, and its version.
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
    # Writes what comes until the time is over or the connection breaks. Returns why that is not all, or an empty text.
    $buffer = New-Object -TypeName 'byte[]' -ArgumentList 1048576
    $to = [System.IO.File]::Open($Path, 'Append', 'Write', 'None')
    try {
        while (($left = [int](1000 * ($Until - (Read-WinhostClock)))) -gt 0) {
            # Not by the stream's own limit: not every .NET keeps to it.
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
    # In bytes; 0 where there is none.
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
