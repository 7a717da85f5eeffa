# marks: lines on this host with the values before and after each change, by which rollback finds later runs

# winhost/core/marks.py does the same in Python.

function New-WinhostMark {
    param($Run, $Step)
    ConvertTo-WinhostText ([ordered]@{
        run = $Run.name
        id = $Run.name
        by = 'bundle'
        resource = $Step.resource
        key = $Step.key
        found = ConvertTo-WinhostMarkValues $Step.before
        set = ConvertTo-WinhostMarkValues $Step.desired
    })
}

function ConvertTo-WinhostMarkValues {
    param($State)
    # Replaces long texts by their hash, which is enough for comparisons.
    $properties = [ordered]@{}
    foreach ($name in @($State.Keys)) {
        $properties[$name] = $State[$name]
        if ($State[$name] -is [string]) {
            $bytes = [System.Text.Encoding]::UTF8.GetBytes($State[$name])
            if ($bytes.Length -gt 200) {
                $properties[$name] = @{ sha256 = ConvertTo-WinhostDigest $bytes }
            }
        }
    }
    $properties
}

function Read-WinhostMark {
    param([string]$Line)
    # Returns nothing for a line that no run wrote. Such lines are ignored and never removed.
    $mark = ConvertFrom-WinhostLine $Line
    foreach ($name in 'run', 'id', 'by', 'resource', 'key', 'found', 'set') {
        if ($null -eq (Read-WinhostField $mark $name)) {
            return
        }
    }
    if ("$($mark.run)" -cmatch '^[A-Za-z0-9_%-]{1,200}\.[A-Za-z0-9-]{1,40}\z') {
        $mark
    }
}

function Remove-WinhostRunMarks {
    param($Run, $Open)
    # Removes the marks of this run, except those of resources that it keeps.
    $known = @((Read-WinhostSingle 'RunMarks').marks)
    $lines = @(foreach ($line in $known) {
        $mark = Read-WinhostMark $line
        if ($null -eq $mark -or $mark.id -cne $Run.name -or $null -ne (Find-WinhostById $Open $mark.resource $mark.key)) {
            $line
        }
    })
    if ($lines.Count -lt $known.Count) {
        # If this fails, outdated marks stay, which does no harm.
        $null = Invoke-WinhostRequest @(@{ resource = 'RunMarks'; verb = 'set'; key = @{}; desired = @{ marks = $lines }; expect = @{ marks = $known } }) $false
    }
}

function Find-WinhostLaterRuns {
    param($Run, $Verdict, $Marks, $Facts)
    # Later runs whose rollback would restore a property to another value than before this run, latest first. Properties
    # that are restored now are left out.
    $touched = $Verdict.touched
    $own = @(Find-WinhostById $Marks $touched.resource $touched.key)
    $read = $Facts[(Find-WinhostResource $touched.resource).name].ok
    # A resource that was restored for good may belong to others by now.
    if ($own.Count -eq 0 -or -not $read -or $null -ne (Find-WinhostById $Run.record.given $touched.resource $touched.key)) {
        return
    }
    $state = Find-WinhostState $Facts $touched.resource $touched.key
    if ($null -eq $state) {
        return
    }
    $now = @{}
    $found = @{}
    Copy-WinhostState $state $now
    Copy-WinhostState $touched.before $found
    $now = ConvertTo-WinhostMarkValues $now
    $found = ConvertTo-WinhostMarkValues $found
    $names = @(foreach ($name in $touched.changed) { if (@($Verdict.undo.desired.Keys) -cnotcontains $name -and $now.Contains($name)) { $name } })
    foreach ($name in $names) {
        $current = $now[$name]
        $later = @(Find-WinhostLaterMarks $name $own $Run.name)
        for ($at = $later.Count - 1; $at -ge 0; $at--) {
            $each = $later[$at]
            if ((Test-WinhostSame $each.set $current) -and -not (Test-WinhostSame $each.found $each.set)) {
                if (-not (Test-WinhostSame $each.found $found[$name])) {
                    $each
                }
                $current = $each.found
            }
            elseif (-not (Test-WinhostSame $each.found $current)) {
                # Somebody else changed it after all of them.
                break
            }
        }
    }
}

function Find-WinhostLaterMarks {
    param([string]$Name, $Marks, [string]$Own)
    # By run, the first value that it found and the last one that it set, after this run's own change.
    $later = @()
    foreach ($mark in $Marks) {
        if ($null -eq $mark.set.PSObject.Properties[$Name]) {
            continue
        }
        if ($mark.id -ceq $Own) {
            $later = @()
            continue
        }
        $same = @(foreach ($each in $later) { if ($each.id -ceq $mark.id) { $each } })
        if ($same.Count -gt 0) {
            $same[0].set = Read-WinhostProperty $mark.set $Name
            continue
        }
        $by = "$($mark.by)"
        $rollback = "as ${by}: winhost rollback $($mark.run)"
        if ($by -ceq 'bundle') {
            $by = 'a bundle'
            $rollback = "with the bundle of $($mark.run): .\Rollback.ps1"
        }
        $later += @{ id = $mark.id; title = "$($mark.run) ($by)"; rollback = $rollback; found = Read-WinhostProperty $mark.found $Name; set = Read-WinhostProperty $mark.set $Name }
    }
    $later
}
