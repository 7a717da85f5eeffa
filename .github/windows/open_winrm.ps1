# Turns on WinRM over HTTPS on a Windows that is thrown away afterwards, with an account of its own, and writes a fleet
# file that reaches it twice: by PowerShell remoting and by WinRM's remote shell. The password is in WINHOST_TRY_PASSWORD.
param(
    [Parameter(Mandatory = $true)]
    [string]$FleetFile
)
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$account = 'winhost-runner'
$password = New-Object -TypeName System.Security.SecureString
foreach ($character in $env:WINHOST_TRY_PASSWORD.ToCharArray()) {
    $password.AppendChar($character)
}
$null = New-LocalUser -Name $account -Password $password -Description 'Tries winhost; the runner is thrown away.'
Add-LocalGroupMember -SID 'S-1-5-32-544' -Member $account
# Without it an administrator who logs on over the network has no administrator's rights.
$policies = 'HKLM:\SOFTWARE\Microsoft\Windows\CurrentVersion\Policies\System'
$null = New-ItemProperty -Path $policies -Name 'LocalAccountTokenFilterPolicy' -Value 1 -PropertyType 'DWord' -Force
Enable-PSRemoting -SkipNetworkProfileCheck -Force
$certificate = New-SelfSignedCertificate -DnsName 'localhost' -CertStoreLocation 'Cert:\LocalMachine\My'
Get-ChildItem -Path 'WSMan:\localhost\Listener' |
    Where-Object -FilterScript { $_.Keys -contains 'Transport=HTTPS' } |
    Remove-Item -Recurse -Force
$listener = @{
    Path = 'WSMan:\localhost\Listener'
    Transport = 'HTTPS'
    Address = '*'
    CertificateThumbPrint = $certificate.Thumbprint
    Force = $true
}
$null = New-Item @listener
$folder = Split-Path -Path $FleetFile -Parent
$pem = Join-Path -Path $folder -ChildPath 'localhost.pem'
$text = [System.Convert]::ToBase64String($certificate.RawData, 'InsertLineBreaks')
Set-Content -Path $pem -Encoding 'ascii' -Value @('-----BEGIN CERTIFICATE-----', $text, '-----END CERTIFICATE-----')
Set-Content -Path $FleetFile -Encoding 'ascii' -Value @"
schema: winhost.fleet/1
defaults:
  transport:
    tls: true
    user: $account
    password: env:WINHOST_TRY_PASSWORD
    verify: localhost.pem
hosts:
  by-psrp: {address: localhost, transport: {kind: psrp}}
  by-winrs: {address: localhost, transport: {kind: winrs}}
"@
