# key {disk: unique id}   state {model: text, bus: text, size: bytes, style: text, boot: bool, system: bool}
function Get-WinhostDisk {
    foreach ($disk in @(Get-Disk -ErrorAction Stop)) {
        $state = @{
            model = "$($disk.FriendlyName)".Trim()
            bus = "$($disk.BusType)"
            size = [long]$disk.Size
            style = "$($disk.PartitionStyle)"
            boot = [bool]$disk.IsBoot
            system = [bool]$disk.IsSystem
        }
        @{ key = @{ disk = "$($disk.UniqueId)".Trim() }; state = $state }
    }
}
