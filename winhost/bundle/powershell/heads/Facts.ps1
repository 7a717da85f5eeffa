<#
.SYNOPSIS
Reads the state of this host. Changes nothing.

.DESCRIPTION
Prints one JSON document in plain ASCII: the facts file that winhost reads with --facts, on a computer that needs no
connection to this host. Run it as an administrator to read everything; whatever cannot be read is listed in the facts
with the reason.

To read WSL, it runs a scheduled task as the account that owns the distro: the account logs on, and each job has a file
in %ProgramData%\winhost\jobs while it runs.

Exit codes: 0 done, 1 failure, 2 wrong usage.

.PARAMETER OutFile
Writes the facts to this file instead of printing them. (In Windows PowerShell, > would write UTF-16.)

.PARAMETER Name
The host's name in the facts: its name in your fleet.yaml. By default the computer name.

.PARAMETER Unknown
Not for use: catches misspelt parameters, for which the script ends with an error and does nothing.

.EXAMPLE
.\Facts.ps1 -OutFile gpu-01.json
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    [string]$OutFile = '',
    [string]$Name = '',
    [Parameter(ValueFromRemainingArguments = $true)][string[]]$Unknown = @()
)
