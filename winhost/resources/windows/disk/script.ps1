# key {disk: unique id}   state {model: text, bus: text, size: bytes, style: text, boot: bool, system: bool, guid: guid or null, number: int, sector: bytes, offline: bool, read_only: bool, health: text}
function Get-WinhostDisk {
    foreach ($disk in @(Read-WinhostDisks)) {
        $state = @{
            model = "$($disk.FriendlyName)".Trim()
            bus = "$($disk.BusType)"
            size = [long]$disk.Size
            style = "$($disk.PartitionStyle)"
            boot = [bool]$disk.IsBoot
            system = [bool]$disk.IsSystem
            guid = ConvertTo-WinhostGuid $disk.Guid
            number = [int]$disk.Number
            sector = [int]$disk.LogicalSectorSize
            offline = [bool]$disk.IsOffline
            read_only = [bool]$disk.IsReadOnly
            health = ConvertTo-WinhostKebab "$($disk.HealthStatus)"
        }
        @{ key = @{ disk = "$($disk.UniqueId)".Trim() }; state = $state }
    }
}
