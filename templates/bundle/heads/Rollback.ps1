<#
.SYNOPSIS
Undoes exactly what Apply.ps1 changed on this host.

.DESCRIPTION
Reads the journal and the host, and puts back what still stands as the run left it: after a crash, after a restart, a
week later. What others changed or use since is kept, and said. Safe to run again; after a restart, run it again.

Exit codes: 0 done, 1 failure, 2 wrong usage or a consent that lacks, 4 not all could be put back, 3010 a restart is
needed.

.PARAMETER Accept
Consents, comma-separated: vm-stop,restart. Those given to Apply.ps1 do not count here.

.PARAMETER WhatIf
Shows the steps and what they ask for. Changes nothing and writes nothing but what reading takes: of
WSL it asks as the account that owns it, by that account's task, which logs it on and has a file for each job in
%ProgramData%\winhost\jobs while it runs.

.PARAMETER ContinueAfterRestart
Where a restart is needed: restarts the host and goes on by itself, by a scheduled task that runs once as the system.
Without it the script stops there and says what to type.

.PARAMETER Keep
Keeps the network without a switch that it removed and that this host would undo by itself, and goes on. To be given when the
script stopped there and said so, and you saw that this host can be reached as before; what does not stand yet it does
not keep.

.PARAMETER GuestDeadline
Seconds that a guest may take to shut down, or a slow change to end: 300 by default, 86400 at most.

.PARAMETER JournalFolder
Where the journal was kept, if Apply.ps1 was told another folder.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not to be given: what is misspelt lands here, and nothing is done.

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
