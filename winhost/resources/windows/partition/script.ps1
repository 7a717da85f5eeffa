# key {partition: guid}   state {disk: guid or null, number: int, offset: bytes, size: bytes, type: guid, letter: text or null, boot: bool, system: bool, hidden: bool, no_letter: bool}
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
