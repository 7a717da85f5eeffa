<#
.SYNOPSIS
Checks whether this host is as plan.json wants it. Changes nothing.

.DESCRIPTION
To read WSL, it runs a scheduled task as the account that owns the distro: the account logs on, and each job has a file
in %ProgramData%\winhost\jobs while it runs.

Exit codes: 0 everything is as planned, 1 failure, 2 wrong usage, 4 something is not as planned.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not for use: catches misspelt parameters, for which the script ends with an error and does nothing.

.EXAMPLE
.\Verify.ps1
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    [switch]$Json,
    [Parameter(ValueFromRemainingArguments = $true)][string[]]$Unknown = @()
)
