# key {volume: mount point}   state {protection: on | off | unknown, volume_type: text}
function Get-WinhostBitLocker {
    # Without the feature there is no cmdlet, and no volume is encrypted by it.
    if (-not (Test-WinhostCommand 'Get-BitLockerVolume')) {
        return
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        $state = @{
            protection = ConvertTo-WinhostWord "$($volume.ProtectionStatus)"
            volume_type = ConvertTo-WinhostWord "$($volume.VolumeType)"
        }
        @{ key = @{ volume = "$($volume.MountPoint)" }; state = $state }
    }
}
