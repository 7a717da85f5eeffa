# Comparison, encoding and hashing of text. Enumeration names such as TurnOff become kebab case, turn-off, in JSON.
function Test-WinhostText {
    param([string]$One, [string]$Other, [string]$Comparison)
    # Compares character by character: -eq and -ceq ignore NUL, soft hyphens and zero-width spaces.
    [string]::Equals($One, $Other, [System.StringComparison]$Comparison)
}

function ConvertTo-WinhostAscii {
    param([string]$Json)
    # Escapes all other characters: XML cannot carry unpaired surrogates or U+FFFF, but JSON escapes pass unchanged through
    # any encoding.
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
    # Returns the SHA-256 of bytes or of a stream; null for null. The FIPS policy allows this implementation, which is
    # that of Windows, and forbids those of .NET.
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
    # Returns the decompressed bytes of a base64-encoded gzip.
    $from = New-Object -TypeName System.IO.MemoryStream -ArgumentList (, [System.Convert]::FromBase64String($Packed))
    $gzip = New-Object -TypeName System.IO.Compression.GZipStream -ArgumentList $from, ([System.IO.Compression.CompressionMode]::Decompress)
    $memory = New-Object -TypeName System.IO.MemoryStream
    $gzip.CopyTo($memory)
    , $memory.ToArray()
}

function ConvertTo-WinhostGuid {
    param($Text)
    # Returns a GUID in lower case without braces, or null if there is none.
    $bare = "$Text".Trim().Trim([char[]]'{}').ToLowerInvariant()
    if ($bare -eq '') {
        return $null
    }
    $bare
}
