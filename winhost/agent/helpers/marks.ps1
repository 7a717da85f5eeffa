# Marks: what runs changed here, a line of JSON for each change, written before it and kept until the run is rolled back.
# By them a controller tells a change by another run from one by a person. Only controllers read the lines.

$script:WinhostMostMarks = 262144

function Get-WinhostRunMarks {
    param($Key)
    @{ key = @{}; state = @{ marks = @(Read-WinhostMarks) } }
}

function Set-WinhostRunMarks {
    param($Key, $Desired, $How)
    Assert-WinhostAdministrator
    Assert-WinhostDesired $Desired @('marks')
    Write-WinhostMarks @($Desired.marks)
}

function Add-WinhostMark {
    param([string]$Mark)
    $marks = @(Read-WinhostMarks)
    if ($marks -cnotcontains $Mark) {
        Write-WinhostMarks ($marks + $Mark)
    }
}

function Join-WinhostMarksPath {
    "$(Read-WinhostDataFolder)\marks.txt"
}

function Read-WinhostMarks {
    $folder = Read-WinhostDataFolder
    if (Test-WinhostFolder $folder) {
        # To anybody else it would look empty.
        Assert-WinhostAdministrator
    }
    # Marks in a folder that others made say nothing.
    if (-not (Test-WinhostOwnFolder $folder)) {
        return
    }
    $bytes = Read-WinhostFile (Join-WinhostMarksPath)
    if ($null -eq $bytes) {
        return
    }
    foreach ($line in [System.Text.Encoding]::UTF8.GetString($bytes).Split([char]10)) {
        if ($line -cne '') {
            $line
        }
    }
}

function Write-WinhostMarks {
    param($Marks)
    $lines = @(foreach ($mark in $Marks) { "$mark" })
    if ($lines.Count -eq 0) {
        Remove-WinhostFile (Join-WinhostMarksPath)
        $null = Remove-WinhostEmptyFolder (Read-WinhostDataFolder)
        return
    }
    # Runs that nobody ever rolls back must not fill the disk: the oldest lines go.
    $size = ($lines -join ' ').Length
    $first = 0
    while ($size -gt $script:WinhostMostMarks -and $first -lt $lines.Count - 1) {
        $size -= $lines[$first].Length + 1
        $first++
    }
    Initialize-WinhostDataFolder
    $text = (@($lines[$first..($lines.Count - 1)]) -join "`n") + "`n"
    Write-WinhostFile (Join-WinhostMarksPath) ([System.Text.Encoding]::UTF8.GetBytes($text))
}
