<#
.SYNOPSIS
Does what plan.json wants of this host, with a journal and a way back.

.DESCRIPTION
Checks the sums of this folder, that this is the host that was planned for, and that the host still is as the plan saw
it. Then it does the steps, one by one, each written to the journal before and after, and reads at the end whether all
is as wanted. Run again after a crash, a failure or a restart, it goes on where it stopped.

Exit codes: 0 done, 1 failure, 2 wrong usage or a consent that lacks, 4 the host is not as the plan saw it (or, at the
end, not as wanted), 3010 a restart is needed.

.PARAMETER Accept
Consents, comma-separated, as README.md lists them: vm-stop,restart

.PARAMETER WhatIf
Shows the steps and what they ask for. Changes nothing and writes nothing but what reading takes: of
WSL it asks as the account that owns it, by that account's task, which logs it on and has a file for each job in
%ProgramData%\winhost\jobs while it runs.

.PARAMETER ContinueAfterRestart
Where a restart is needed: restarts the host and goes on by itself, by a scheduled task that runs once as the system.
Without it the script stops there and says what to type.

.PARAMETER Keep
Keeps a switch that it made and that this host would undo by itself, and goes on. To be given when the
script stopped there and said so, and you saw that this host can be reached as before; what does not stand yet it does
not keep.

.PARAMETER GuestDeadline
Seconds that a guest may take to shut down, or a slow change to end: 300 by default, 86400 at most.

.PARAMETER JournalFolder
Where the journal is kept. By default winhost in ProgramData, where only administrators have access.

.PARAMETER Json
Prints one JSON document and nothing else.

.PARAMETER Unknown
Not to be given: what is misspelt lands here, and nothing is done.

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
