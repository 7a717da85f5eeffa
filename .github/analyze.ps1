# Every finding of PSScriptAnalyzer in the scripts of these folders; none is what is wanted.
param(
    [Parameter(Mandatory = $true)]
    [string[]]$Folder
)
Set-StrictMode -Version 3.0
$ErrorActionPreference = 'Stop'
$settings = Import-PowerShellDataFile -Path (Join-Path -Path $PSScriptRoot -ChildPath 'PSScriptAnalyzerSettings.psd1')
$module = @(Get-Module -ListAvailable -Name PSScriptAnalyzer | Sort-Object -Property Version -Descending)
if ($module.Count -eq 0) {
    throw 'There is no PSScriptAnalyzer: Install-Module -Name PSScriptAnalyzer -Scope CurrentUser'
}
# What it knows of each Windows. Some packages of it come without, and it then ends with a null reference.
$profiles = Join-Path -Path $module[0].ModuleBase -ChildPath 'compatibility_profiles'
$unchecked = @()
foreach ($rule in @($settings.Rules.Keys)) {
    $lacking = @(foreach ($name in $settings.Rules[$rule]['TargetProfiles']) {
        if (-not (Test-Path -LiteralPath (Join-Path -Path $profiles -ChildPath "$name.json"))) {
            $name
        }
    })
    if ($lacking.Count -gt 0) {
        $unchecked += "$rule was not checked: $profiles lacks $($lacking -join ', ')"
        $settings.Rules.Remove($rule)
        $settings.IncludeRules = @($settings.IncludeRules | Where-Object -FilterScript { $_ -ne $rule })
    }
}
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
$unchecked
"$($findings.Count) findings"
# What was not checked is not known to be good.
exit [int]($findings.Count -gt 0 -or $unchecked.Count -gt 0)
