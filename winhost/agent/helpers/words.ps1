# Text as it is compared and sent, and words: TurnOff on the host is turn-off on the wire.
function Test-WinhostText {
    param([string]$One, [string]$Other, [string]$Comparison)
    # Character by character: -eq and -ceq do not see a NUL, a soft hyphen, or a zero-width space.
    [string]::Equals($One, $Other, [System.StringComparison]$Comparison)
}

function ConvertTo-WinhostAscii {
    param([string]$Json)
    # XML cannot carry half a character or U+FFFF; as escapes of JSON they arrive, whatever encoding is on the way.
    [regex]::Replace($Json, '[^\x00-\x7f]', { param($Found) '\u{0:x4}' -f [int][char]$Found.Value })
}

function ConvertTo-WinhostKebab {
    param([string]$Name)
    ($Name -creplace '(?<=[a-z])([A-Z])', '-$1').ToLowerInvariant()
}

function ConvertFrom-WinhostKebab {
    param([string]$Word, [string[]]$Names)
    foreach ($name in $Names) {
        if (Test-WinhostText (ConvertTo-WinhostKebab $name) $Word 'Ordinal') {
            return $name
        }
    }
    Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' "$Word is none of $($Names -join ', ')."
}

function ConvertTo-WinhostDigest {
    param($Bytes)
    # SHA-256 of bytes or of a stream; nothing for nothing. This implementation is Windows' own: the FIPS policy forbids
    # those of .NET.
    if ($null -eq $Bytes) {
        return $null
    }
    if ($Bytes -isnot [System.IO.Stream]) {
        $Bytes = [byte[]]$Bytes
    }
    $sha256 = New-Object -TypeName System.Security.Cryptography.SHA256CryptoServiceProvider
    $sum = $sha256.ComputeHash($Bytes)
    $sha256.Dispose()
    [System.BitConverter]::ToString($sum).Replace('-', '').ToLowerInvariant()
}

function Measure-WinhostText {
    param([string]$Text)
    ConvertTo-WinhostDigest ([System.Text.Encoding]::UTF8.GetBytes($Text))
}

function Expand-WinhostGzip {
    param([string]$Packed)
    # The bytes of a gzip in base64.
    $from = New-Object -TypeName System.IO.MemoryStream -ArgumentList (, [System.Convert]::FromBase64String($Packed))
    $gzip = New-Object -TypeName System.IO.Compression.GZipStream -ArgumentList $from, ([System.IO.Compression.CompressionMode]::Decompress)
    $memory = New-Object -TypeName System.IO.MemoryStream
    $gzip.CopyTo($memory)
    , $memory.ToArray()
}

function ConvertTo-WinhostGuid {
    param($Text)
    # Lower case and without braces; nothing where there is none.
    $bare = "$Text".Trim().Trim([char[]]'{}').ToLowerInvariant()
    if ($bare -eq '') {
        return $null
    }
    $bare
}
