<#
.SYNOPSIS
Undoes exactly what Apply.ps1 changed on this host.

.DESCRIPTION
Reads the journal and the host, and undoes what is still as the run left it, also after a crash, after a restart, or a
week later. What others have changed since, or use now, is kept and listed. It can be run again at any time; after a
restart, run it again to continue.

Exit codes: 0 done, 1 failure, 2 wrong usage or a missing approval, 4 not everything could be undone, 3010 a restart is
needed.

.PARAMETER Accept
Approvals, separated by commas: vm-stop,restart. Approvals given to Apply.ps1 do not count here.

.PARAMETER WhatIf
Shows the steps and the approvals that they need. Changes nothing. To read WSL, it runs a scheduled task as the account
that owns the distro: the account logs on, and each job has a file in %ProgramData%\winhost\jobs while it runs.

.PARAMETER ContinueAfterRestart
If a restart is needed, restarts the host and continues in a scheduled task that runs once as SYSTEM. Without this
parameter the script stops there and says what to run afterwards.

.PARAMETER Keep
Keeps the removal of a virtual switch by an earlier call, which the host would otherwise undo by itself, and continues.
Use it after the script has stopped with NotKept and you have checked that the host can be reached as before. It does
not apply to a switch that this call removes.

.PARAMETER GuestDeadline
How many seconds to wait for a guest to shut down or for a slow change to finish: 300 by default, 86400 at most.

.PARAMETER JournalFolder
The folder of the journal, if Apply.ps1 was given one.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not for use: catches misspelt parameters, for which the script ends with an error and does nothing.

.EXAMPLE
.\Rollback.ps1 -WhatIf

.EXAMPLE
.\Rollback.ps1 -Accept vm-stop
#>
[CmdletBinding(PositionalBinding = $false)]
param(
    [string[]]$Accept = @(),
    [switch]$WhatIf,
    [switch]$ContinueAfterRestart,
    [switch]$Keep,
    [string]$GuestDeadline = '300',
    [string]$JournalFolder = '',
    [switch]$Json,
    [Parameter(ValueFromRemainingArguments = $true)][string[]]$Unknown = @()
)
