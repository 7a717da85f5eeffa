<#
.SYNOPSIS
Reads what this host is. Changes nothing.

.DESCRIPTION
Of WSL it asks as the account that owns it, by that account's task: a logon of it, and a file for each job in
%ProgramData%\winhost\jobs while it runs.

Prints one JSON document: the facts file that winhost reads with --facts, on a machine that never sees this host. It is
plain ASCII. Needs an administrator to read everything; what could not be read stands in the facts with its reason.

Exit codes: 0 done, 1 failure, 2 wrong usage.

.PARAMETER OutFile
Writes the facts to this file instead. (In Windows PowerShell, > would write them as UTF-16.)

.PARAMETER Name
What the host is called in the facts. By default its computer name.

.PARAMETER Unknown
Not to be given: what is misspelt lands here, and nothing is done.

.EXAMPLE
.\Facts.ps1 -OutFile gpu-01.json
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    [string]$OutFile = '',
    [string]$Name = '',
    [Parameter(ValueFromRemainingArguments = $true)][string[]]$Unknown = @()
)
