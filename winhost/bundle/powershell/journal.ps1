# the journal: each line is on disk before the run continues, with its own hash and that of the line before

$script:WinhostJournalSchema = 'winhost.bundle-journal/3'

# ---- the folder, which only administrators and the system can open, and which stays when the bundle is deleted

function Find-WinhostJournalFolder {
    if ($script:JournalFolder -ne '') {
        # Relative to PowerShell's folder, which is not that of its process.
        return $ExecutionContext.SessionState.Path.GetUnresolvedProviderPathFromPSPath($script:JournalFolder).TrimEnd('\')
    }
    Join-WinhostPath ([System.Environment]::GetFolderPath('CommonApplicationData')) 'winhost'
}

function Protect-WinhostFolder {
    param([string]$Path)
    if ("$([System.Environment]::OSVersion.Platform)" -ne 'Win32NT') {
        # Only tests run on other systems.
        $null = [System.IO.Directory]::CreateDirectory($Path)
        return
    }
    $folder = New-Object -TypeName System.IO.DirectoryInfo -ArgumentList $Path
    if ($null -ne (Read-WinhostAttributes $Path)) {
        Assert-WinhostPrivateFolder $folder
    }
    else {
        Add-WinhostFolder $Path $script:WinhostOnlyAdministrators
    }
}

function Assert-WinhostPrivateFolder {
    param($Folder)
    # Anybody can create a folder in ProgramData. A trusted one must be owned by administrators and open to them alone.
    $kind = [System.Security.Principal.SecurityIdentifier]
    $rights = Get-Acl -LiteralPath $Folder.FullName -ErrorAction Stop
    $accounts = @("$($rights.GetOwner($kind))")
    foreach ($rule in $rights.GetAccessRules($true, $true, $kind)) {
        $accounts += "$($rule.IdentityReference)"
    }
    $others = @(foreach ($each in $accounts) { if (@('S-1-5-32-544', 'S-1-5-18') -cnotcontains $each) { $each } })
    if ($others.Count -gt 0 -or $Folder.Attributes -band [System.IO.FileAttributes]::ReparsePoint) {
        Stop-WinhostScript 1 'NotOurs' "$($Folder.FullName) was not made by winhost: others may write there" 'Nothing was changed.' 'Look at what it holds and remove it, or name another folder with -JournalFolder.'
    }
}

function Lock-WinhostRun {
    param($Run)
    try {
        $Run.lock = [System.IO.File]::Open((Join-WinhostPath $Run.journals 'lock'), 'OpenOrCreate', 'ReadWrite', 'None')
    }
    catch [System.IO.IOException] {
        Stop-WinhostScript 1 'Busy' 'this host is being changed by another run' 'Nothing was changed.' 'Wait for it to end.'
    }
}

function Close-WinhostRun {
    param($Run)
    if ($null -eq $Run) {
        return
    }
    foreach ($file in @($Run.stream, $Run.lock)) {
        try {
            if ($null -ne $file) {
                $file.Dispose()
            }
        }
        catch [System.IO.IOException] {
            # On a full disk the last line of the journal fails again. That was reported; the lock still has to go.
            $null = $_
        }
    }
}

function Find-WinhostJournals {
    param($Run)
    # The journals of all plans, oldest first. A name has the sum of the plan, and the time of creation.
    $found = New-Object -TypeName System.Collections.SortedList -ArgumentList ([System.StringComparer]::Ordinal)
    if ($null -ne (Read-WinhostAttributes $Run.journals)) {
        foreach ($path in [System.IO.Directory]::GetFiles($Run.journals, '*.jsonl')) {
            $sum, $time = [System.IO.Path]::GetFileNameWithoutExtension($path) -split '\.'
            $found["$time $sum"] = @{ path = $path; sum = $sum }
        }
    }
    $found.Values
}

# ---- lines

function Read-WinhostJournal {
    param([string]$Path)
    $stream = [System.IO.File]::Open($Path, 'Open', 'Read', 'ReadWrite')
    # Without decoding: a byte order mark of an editor is a change too, and would shift the length.
    $reader = New-Object -TypeName System.IO.StreamReader -ArgumentList $stream, ([System.Text.Encoding]::ASCII), $false
    $text = $reader.ReadToEnd()
    $reader.Dispose()
    # Bytes after the last line feed are an incomplete line of a killed run. Nothing was done after it.
    $lines = @($text -split "`n")
    $journal = @{ record = New-WinhostRecord; previous = ''; entries = 0; length = 0 }
    Assert-WinhostJournalVersion $Path $lines
    for ($number = 0; $number -lt $lines.Count - 1; $number++) {
        $entry = ConvertFrom-WinhostLine $lines[$number]
        $follows = (Read-WinhostField $entry 'n') -eq $number + 1 -and (Read-WinhostField $entry 'previous') -ceq $journal.previous
        if (-not $follows -or (Add-WinhostHash ($lines[$number] -creplace ',"hash":"[0-9a-f]{16}"\}$', '}')) -cne $lines[$number]) {
            Stop-WinhostScript 2 'Damaged' "${Path}: line $($number + 1) is not as winhost wrote it" 'It cannot be relied on for going on or going back. Nothing was changed.' 'Restore the file from a copy.'
        }
        Add-WinhostEntry $journal.record $entry
        $journal.previous = $entry.hash
        $journal.entries++
        $journal.length += $lines[$number].Length + 1
    }
    $journal
}

function Assert-WinhostJournalVersion {
    param([string]$Path, [string[]]$Lines)
    # Checks the schema in the first line before the lines are checked by the rules of this schema.
    if ($Lines.Count -lt 2) {
        return
    }
    $schema = Read-WinhostField (ConvertFrom-WinhostLine $Lines[0]) 'schema'
    if ($null -ne $schema -and "$schema" -cne $script:WinhostJournalSchema) {
        $what = "${Path}: schema is '$schema', and this package reads '$script:WinhostJournalSchema'"
        Stop-WinhostScript 2 'OtherVersion' $what 'It may tell of changes that stand, and cannot be read. Nothing was changed.' 'Roll that run back with the package that wrote it, then move the file out of this folder.'
    }
}

function ConvertFrom-WinhostLine {
    param([string]$Line)
    try {
        ConvertFrom-Json -InputObject $Line -ErrorAction Stop
    }
    catch {
        $null
    }
}

function Add-WinhostHash {
    param([string]$Line)
    # The hash of the line without it shows an edited line even if no other follows.
    $hash = (ConvertTo-WinhostDigest ([System.Text.Encoding]::ASCII.GetBytes($Line))).Substring(0, 16)
    "$($Line.Substring(0, $Line.Length - 1)),""hash"":""$hash""}"
}

function Open-WinhostJournal {
    param($Run, [string]$Path)
    # Continues an existing journal after its last complete line.
    $journal = Read-WinhostJournal $Path
    $Run.name = [System.IO.Path]::GetFileNameWithoutExtension($Path)
    $Run.record = $journal.record
    $Run.previous = $journal.previous
    $Run.entries = $journal.entries
    if (-not $script:WhatIf) {
        $Run.stream = [System.IO.File]::Open($Path, 'Open', 'Write', 'Read')
        $Run.stream.SetLength($journal.length)
        $null = $Run.stream.Seek(0, 'End')
    }
}

function Write-WinhostEntry {
    param($Run, [string]$Kind, $Fields)
    # The journal is created with the first change, so that a refused plan leaves nothing behind.
    if ($null -eq $Run.stream) {
        $time = [System.DateTime]::UtcNow.ToString('yyyyMMdd-HHmmss-fff', [cultureinfo]::InvariantCulture)
        $Run.name = "$($Run.sum).$time"
        $path = Join-WinhostPath $Run.journals "$($Run.name).jsonl"
        $Run.stream = [System.IO.File]::Open($path, 'CreateNew', 'Write', 'Read')
    }
    if ($Run.entries -eq 0) {
        Write-WinhostLine $Run 'run' ([ordered]@{ schema = $script:WinhostJournalSchema; host = $Run.plan.host; winhost = $script:WinhostVersion; accepted = $Run.accepted })
    }
    Write-WinhostLine $Run $Kind $Fields
}

function Write-WinhostLine {
    param($Run, [string]$Kind, $Fields)
    $entry = [ordered]@{
        n = $Run.entries + 1
        # Not in a form that PowerShell 7 would parse as a date.
        at = [System.DateTime]::UtcNow.ToString('yyyy-MM-dd HH:mm:ss.fff', [cultureinfo]::InvariantCulture)
        event = $Kind
    }
    foreach ($name in $Fields.Keys) {
        $entry[$name] = $Fields[$name]
    }
    $entry['previous'] = $Run.previous
    $line = Add-WinhostHash (ConvertTo-WinhostText $entry)
    $bytes = [System.Text.Encoding]::ASCII.GetBytes("$line`n")
    $Run.stream.Write($bytes, 0, $bytes.Length)
    # To the disk, not only to the cache of Windows.
    $Run.stream.Flush($true)
    $written = ConvertFrom-WinhostLine $line
    $Run.entries++
    $Run.previous = $written.hash
    Add-WinhostEntry $Run.record $written
}

# ---- the state of a run by its journal

function New-WinhostRecord {
    # touched: resources that this run changed, from the first state (before) to the one that the run left (after);
    # transitional: states that are also the run's doing, because it was changing from or to them; users: dependents before
    # the change; dependents: those after the stage, or null if a step has started since.
    # restart, boot: a restart is due, and the boot that it ends. back: a rollback has started. stage: all steps are done.
    # setting: the properties that the step in flight sets. given: resources that were restored for good.
    @{ touched = @(); restart = $false; boot = $null; back = $false; stage = $false; setting = @(); outcome = ''; given = @() }
}

function Add-WinhostEntry {
    param($Record, $Entry)
    switch ($Entry.event) {
        'begin' {
            $Record.outcome = ''
            Add-WinhostStepStart $Record $Entry
        }
        'end' {
            $Record.restart = $Record.restart -or $Entry.restart
            Add-WinhostStateAfter $Record $Entry
        }
        'failed' {
            Add-WinhostStateAfter $Record $Entry
        }
        'restarting' {
            $Record.restart = $true
            $Record.boot = $Entry.boot_id
        }
        'restarted' {
            $Record.restart = $false
            $Record.boot = $null
            # Changes took effect with the restart, so their states are those after it.
            foreach ($left in @($Entry.left)) {
                if (-not $Record.back) {
                    Add-WinhostStateAfter $Record $left
                }
            }
        }
        'dependents' {
            foreach ($item in @($Entry.resources)) {
                (Find-WinhostById $Record.touched $item.resource $item.key).dependents = @($item.users)
            }
        }
        'stage' {
            $Record.stage = $true
        }
        'back' {
            $Record.back = $true
            $Record.outcome = ''
        }
        'outcome' {
            $Record.outcome = $Entry.outcome
            if ($null -ne $Entry.PSObject.Properties['open']) {
                $Record.given = @(foreach ($touched in $Record.touched) { if ($null -eq (Find-WinhostById @($Entry.open) $touched.resource $touched.key)) { $touched } })
            }
        }
    }
}

function Add-WinhostStepStart {
    param($Record, $Entry)
    $step = $Entry.step
    $Record.setting = @(foreach ($property in @($step.desired.PSObject.Properties)) { $property.Name })
    $touched = Find-WinhostById $Record.touched $step.resource $step.key
    if ($Record.back -and $null -ne $touched) {
        # A VM that is off for other rollback steps: a resumed rollback must not take that for somebody else's change.
        $touched.transitional = @($step.before, $step.desired)
        return
    }
    if (-not $Record.back) {
        # The instance that this step creates belongs to the run, so dependents are read again after it.
        foreach ($other in $Record.touched) {
            $other.dependents = $null
        }
    }
    if ($null -eq $touched) {
        $touched = @{ resource = $step.resource; key = $step.key; title = $step.title; before = $Entry.found; changed = @(); after = @{}; transitional = @(); users = @($Entry.users); dependents = $null }
        Copy-WinhostState $Entry.found $touched.after
        $Record.touched += $touched
    }
    foreach ($name in $Record.setting) {
        if ($touched.changed -cnotcontains $name) {
            $touched.changed += $name
        }
    }
    Copy-WinhostState $step.desired $touched.after
    $touched.transitional = @($step.before)
}

function Add-WinhostStateAfter {
    param($Record, $Entry)
    $touched = Find-WinhostById $Record.touched $Entry.resource $Entry.key
    if ($null -eq $touched -or $null -eq $Entry.after) {
        return
    }
    if ($Record.back) {
        # Only the properties of the step are the run's doing: somebody else may have changed the others since.
        $own = @{}
        foreach ($name in $Record.setting) {
            $own[$name] = Read-WinhostProperty $Entry.after $name
        }
        $touched.transitional = @([pscustomobject]$own)
    }
    else {
        $touched.transitional = @()
        Copy-WinhostState $Entry.after $touched.after
    }
}

function Copy-WinhostState {
    param($From, $To)
    foreach ($property in @($From.PSObject.Properties)) {
        $To[$property.Name] = $property.Value
    }
}
