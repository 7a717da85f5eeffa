# key {}   state {state: on | off | unsupported, authorities: [text], revoked: int}
function Get-WinhostSecureBoot {
    Assert-WinhostAdministrator
    $state = @{ state = 'unsupported'; authorities = @(); revoked = 0 }
    if ((Read-WinhostFirmwareKind) -ceq 'uefi') {
        $set = Read-WinhostSecureVariable 'SecureBoot'
        if ($null -ne $set) {
            $state.state = @('off', 'on')[[int]($set[0] -eq 1)]
        }
        $state.authorities = Read-WinhostList {
            foreach ($signature in @(Read-WinhostSignatures 'db')) {
                # X.509 certificates. Other kinds are hashes of single programs.
                if ($signature.kind -ceq 'a5c059a1-94e4-4aa7-87b5-ab155c2bf072') {
                    $certificate = New-Object -TypeName System.Security.Cryptography.X509Certificates.X509Certificate2 -ArgumentList (, $signature.data)
                    $certificate.GetNameInfo([System.Security.Cryptography.X509Certificates.X509NameType]::SimpleName, $false)
                }
            }
        }
        $state.revoked = Read-WinhostValue { @(Read-WinhostSignatures 'dbx').Count }
    }
    @{ key = @{}; state = $state }
}

function Read-WinhostSignatures {
    param([string]$Variable)
    # The variable contains signature lists, each with its type, its size, and the sizes of its header and of one signature
    # including its owner.
    $bytes = Read-WinhostSecureVariable $Variable
    $offset = 0
    while ($null -ne $bytes -and $offset + 28 -le $bytes.Length) {
        $end = $offset + [System.BitConverter]::ToUInt32($bytes, $offset + 16)
        $each = $offset + 28 + [System.BitConverter]::ToUInt32($bytes, $offset + 20)
        $length = [System.BitConverter]::ToUInt32($bytes, $offset + 24)
        if ($end -le $offset -or $end -gt $bytes.Length -or $length -le 16) {
            Stop-Winhost 'Winhost.WrongVariable' 'InvalidData' "The firmware's variable $Variable does not have the form of lists of signatures."
        }
        $kind = New-Object -TypeName byte[] -ArgumentList 16
        [Array]::Copy($bytes, $offset, $kind, 0, 16)
        for (; $each + $length -le $end; $each += $length) {
            $data = New-Object -TypeName byte[] -ArgumentList ($length - 16)
            [Array]::Copy($bytes, $each + 16, $data, 0, $length - 16)
            @{ kind = "$(New-Object -TypeName System.Guid -ArgumentList (, $kind))"; data = $data }
        }
        $offset = $end
    }
}
