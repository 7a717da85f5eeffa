# Marks, which record what runs changed on this host.
# A mark is a line of JSON for a change, written before it and kept until the run is rolled back. With marks a controller can
# distinguish changes by other runs from changes by people. This script does not interpret the lines.

$script:WinhostMaxMarksSize = 262144

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
        # To other users the folder would look empty.
        Assert-WinhostAdministrator
    }
    # Marks in a folder that others created are ignored.
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
    # The oldest lines are removed, so that runs that are never rolled back do not fill the disk.
    $size = ($lines -join ' ').Length
    $first = 0
    while ($size -gt $script:WinhostMaxMarksSize -and $first -lt $lines.Count - 1) {
        $size -= $lines[$first].Length + 1
        $first++
    }
    Initialize-WinhostDataFolder
    $text = (@($lines[$first..($lines.Count - 1)]) -join "`n") + "`n"
    Write-WinhostFile (Join-WinhostMarksPath) ([System.Text.Encoding]::UTF8.GetBytes($text))
}
