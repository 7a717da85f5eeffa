<#
.SYNOPSIS
Applies plan.json to this host, with a journal that Rollback.ps1 can undo.

.DESCRIPTION
Checks the checksums of this folder, that this is the host that the plan was made for, and that the host has not
changed since. Then it runs the steps one by one, with a line in the journal before and after each, and finally reads
the host to check the result. Run it again after a crash, a failure or a restart: it continues where it stopped.

Exit codes: 0 done, 1 failure, 2 wrong usage or a missing approval, 4 the host has changed since the plan was made (or,
at the end, is not as planned), 3010 a restart is needed.

.PARAMETER Accept
Approvals, separated by commas, as README.md lists them: vm-stop,restart

.PARAMETER WhatIf
Shows the steps and the approvals that they need. Changes nothing. To read WSL, it runs a scheduled task as the account
that owns the distro: the account logs on, and each job has a file in %ProgramData%\winhost\jobs while it runs.

.PARAMETER ContinueAfterRestart
If a restart is needed, restarts the host and continues in a scheduled task that runs once as SYSTEM. Without this
parameter the script stops there and says what to run afterwards.

.PARAMETER Keep
Keeps the virtual switch that an earlier call created, which the host would otherwise undo by itself, and continues.
Use it after the script has stopped with NotKept and you have checked that the host can be reached as before. It does
not apply to a switch that this call creates.

.PARAMETER GuestDeadline
How many seconds to wait for a guest to shut down or for a slow change to finish: 300 by default, 86400 at most.

.PARAMETER JournalFolder
The folder of the journal. By default %ProgramData%\winhost, which only administrators can open.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not for use: catches misspelt parameters, for which the script ends with an error and does nothing.

.EXAMPLE
.\Apply.ps1 -WhatIf

.EXAMPLE
.\Apply.ps1 -Accept vm-stop,restart
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
