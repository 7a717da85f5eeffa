# key {volume: mount point}   state {protection: on | off | unknown, volume_type: text, conversion: text, percentage: int, suspended: int or null, protectors: [{id: guid, kind: text}], pcrs: [int]}
function Get-WinhostBitLocker {
    # Without the feature there is no cmdlet, and no volume is encrypted by it.
    if (-not (Test-WinhostCommand 'Get-BitLockerVolume')) {
        return
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        $state = @{
            protection = ConvertTo-WinhostWord "$($volume.ProtectionStatus)"
            volume_type = ConvertTo-WinhostWord "$($volume.VolumeType)"
            conversion = ConvertTo-WinhostWord "$($volume.VolumeStatus)"
            percentage = [int]$volume.EncryptionPercentage
            suspended = Read-WinhostValue { Read-WinhostSuspension $volume }
            protectors = Read-WinhostList { Read-WinhostProtectors $volume }
            pcrs = Read-WinhostList { Read-WinhostPcrs $volume }
        }
        @{ key = @{ volume = "$($volume.MountPoint)" }; state = $state }
    }
}

function Read-WinhostProtectors {
    param($Volume)
    # Id and kind, and nothing else of them: the rest opens the volume.
    foreach ($protector in @($Volume.KeyProtector)) {
        if ($null -ne $protector) {
            @{ id = ConvertTo-WinhostGuid $protector.KeyProtectorId; kind = ConvertTo-WinhostWord "$($protector.KeyProtectorType)" }
        }
    }
}

function Find-WinhostEncryptable {
    param($Volume)
    $space = 'root\CIMV2\Security\MicrosoftVolumeEncryption'
    foreach ($each in @(Read-WinhostOnce 'encryptable' { Get-CimInstance -Namespace $space -ClassName Win32_EncryptableVolume -ErrorAction Stop })) {
        if ("$($each.DriveLetter)" -eq "$($Volume.MountPoint)") {
            return $each
        }
    }
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' "Windows tells nothing of the volume $($Volume.MountPoint) in $space."
}

function Read-WinhostSuspension {
    param($Volume)
    # Only of a volume that is encrypted and open to everybody there is something to count.
    if ("$($Volume.ProtectionStatus)" -cne 'Off' -or "$($Volume.VolumeStatus)" -ceq 'FullyDecrypted') {
        return $null
    }
    $counted = Invoke-CimMethod -InputObject (Find-WinhostEncryptable $Volume) -MethodName GetSuspendCount -ErrorAction Stop
    [int]$counted.SuspendCount
}

function Read-WinhostPcrs {
    param($Volume)
    foreach ($protector in @($Volume.KeyProtector)) {
        if ($null -ne $protector -and "$($protector.KeyProtectorType)" -like 'Tpm*') {
            $asked = @{ VolumeKeyProtectorID = "$($protector.KeyProtectorId)" }
            $told = Invoke-CimMethod -InputObject (Find-WinhostEncryptable $Volume) -MethodName GetKeyProtectorPlatformValidationProfile -Arguments $asked -ErrorAction Stop
            foreach ($register in @($told.PlatformValidationProfile)) {
                [int]$register
            }
            return
        }
    }
}
