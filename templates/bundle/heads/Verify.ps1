<#
.SYNOPSIS
Says whether what plan.json wants of this host is so. Changes nothing.

.DESCRIPTION
Of WSL it asks as the account that owns it, by that account's task: a logon of it, and a file for each job in
%ProgramData%\winhost\jobs while it runs.

Exit codes: 0 all is as wanted, 1 failure, 2 wrong usage, 4 something is not.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not to be given: what is misspelt lands here, and nothing is done.

.EXAMPLE
.\Verify.ps1
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    [switch]$Json,
    [Parameter(ValueFromRemainingArguments = $true)][string[]]$Unknown = @()
)
