# Every finding of PSScriptAnalyzer in the scripts of these folders; none is what is wanted.
param(
    [Parameter(Mandatory = $true)]
    [string[]]$Folder
)
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$settings = Join-Path -Path $PSScriptRoot -ChildPath 'PSScriptAnalyzerSettings.psd1'
$findings = @()
foreach ($each in $Folder) {
    $scripts = @(Get-ChildItem -Path $each -Filter '*.ps1' -File -Recurse)
    if ($scripts.Count -eq 0) {
        throw "There is no script in $each."
    }
    foreach ($script in $scripts) {
        $findings += @(Invoke-ScriptAnalyzer -Path $script.FullName -Settings $settings)
    }
    "${each}: $($scripts.Count) scripts"
}
$findings | Format-List -Property ScriptPath, Line, RuleName, Severity, Message
"$($findings.Count) findings"
exit [int]($findings.Count -gt 0)
