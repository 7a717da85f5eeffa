# key {partition: guid}   state {disk: guid or null, number: int, offset: bytes, size: bytes, type: guid, letter: text or null, boot: bool, system: bool, hidden: bool, no_letter: bool}; set: size; how {accept: data}
function Get-WinhostPartition {
    foreach ($each in @(Find-WinhostPartitions)) {
        $state = @{
            disk = ConvertTo-WinhostGuid $each.disk.Guid
            number = [int]$each.found.PartitionNumber
            offset = [long]$each.found.Offset
            size = [long]$each.found.Size
            type = "$($each.type)"
            letter = Read-WinhostDriveLetter $each.found
            boot = [bool]$each.found.IsBoot
            system = [bool]$each.found.IsSystem
            hidden = [bool]$each.found.IsHidden
            no_letter = [bool]$each.found.NoDefaultDriveLetter
        }
        @{ key = @{ partition = $each.guid }; state = $state }
    }
}

function Set-WinhostPartition {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('size')
    Assert-WinhostAdministrator
    if ("$($Desired.size)" -notmatch '\A[1-9][0-9]{0,17}\z' -or $Desired.size -is [string] -or $Desired.size % 512 -ne 0) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'size is in bytes, in steps of 512.'
    }
    foreach ($each in @(Find-WinhostPartitions)) {
        if ($each.guid -eq "$($Key.partition)") {
            Write-WinhostPartitionSize $each.found ([long]$Desired.size) $How
            return
        }
    }
}

function Write-WinhostPartitionSize {
    param($Partition, [long]$Size, $How)
    Assert-WinhostDataConsent $How 'A partition table would be written'
    if (-not [bool]$Partition.IsBoot) {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' 'Only the partition that Windows runs from is resized.'
    }
    $limits = Get-PartitionSupportedSize -InputObject $Partition -ErrorAction Stop
    if ($Size -lt [long]$limits.SizeMin -or $Size -gt [long]$limits.SizeMax) {
        $why = "It can have between $($limits.SizeMin) and $($limits.SizeMax) bytes now, and not $Size."
        Stop-Winhost 'Winhost.SizeNotSupported' 'InvalidArgument' $why
    }
    Resize-Partition -InputObject $Partition -Size $Size -Confirm:$false -ErrorAction Stop
}
