# marks: lines on this host that say what each run found and set, by which rollback tells later runs from people

# Controllers leave the same ones: winhost/core/marks.py has this in Python.

function New-WinhostMark {
    param($Run, $Step)
    ConvertTo-WinhostText ([ordered]@{
        run = $Run.name
        id = $Run.name
        by = 'bundle'
        resource = $Step.resource
        key = $Step.key
        found = ConvertTo-WinhostMarked $Step.before
        set = ConvertTo-WinhostMarked $Step.desired
    })
}

function ConvertTo-WinhostMarked {
    param($State)
    # Of long texts the hash: a file is not kept a second time to be compared.
    $marked = [ordered]@{}
    foreach ($name in @($State.Keys)) {
        $marked[$name] = $State[$name]
        if ($State[$name] -is [string]) {
            $bytes = [System.Text.Encoding]::UTF8.GetBytes($State[$name])
            if ($bytes.Length -gt 200) {
                $marked[$name] = @{ sha256 = ConvertTo-WinhostDigest $bytes }
            }
        }
    }
    $marked
}

function Read-WinhostMark {
    param([string]$Line)
    # Nothing for a line that no run wrote: nothing is known by it, and nobody removes it.
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
    # Those of this run, but of what it still keeps.
    $known = @((Read-WinhostOnly 'RunMarks').marks)
    $lines = @(foreach ($line in $known) {
        $mark = Read-WinhostMark $line
        if ($null -eq $mark -or $mark.id -cne $Run.name -or $null -ne (Find-WinhostById $Open $mark.resource $mark.key)) {
            $line
        }
    })
    if ($lines.Count -lt $known.Count) {
        # Marks that stay say what is not so, and do no harm.
        $null = Invoke-WinhostRequest @(@{ resource = 'RunMarks'; verb = 'set'; key = @{}; desired = @{ marks = $lines }; expect = @{ marks = $known } }) $false
    }
}

function Find-WinhostMovers {
    param($Run, $Verdict, $Marks, $Facts)
    # Later runs that put a property elsewhere than this run found it when they are rolled back, latest first. What goes
    # back now is not looked at.
    $touched = $Verdict.touched
    $about = @(Find-WinhostById $Marks $touched.resource $touched.key)
    $read = $Facts[(Find-WinhostResource $touched.resource).name].ok
    # What was given back for good is others' by now.
    if ($about.Count -eq 0 -or -not $read -or $null -ne (Find-WinhostById $Run.record.given $touched.resource $touched.key)) {
        return
    }
    $state = Find-WinhostNow $Facts $touched.resource $touched.key
    if ($null -eq $state) {
        return
    }
    $now = @{}
    $found = @{}
    Copy-WinhostState $state $now
    Copy-WinhostState $touched.before $found
    $now = ConvertTo-WinhostMarked $now
    $found = ConvertTo-WinhostMarked $found
    $names = @(foreach ($name in $touched.changed) { if (@($Verdict.undo.desired.Keys) -cnotcontains $name -and $now.Contains($name)) { $name } })
    foreach ($name in $names) {
        $current = $now[$name]
        $later = @(Find-WinhostLaterMarks $name $about $Run.name)
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
    # By run, what it found first and set last, after this run's own change.
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
