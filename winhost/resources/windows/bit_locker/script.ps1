# key {volume: mount point}   state {protection: on | off | unknown, volume_type: text, conversion: text, percentage: int, suspended: int or null, protectors: [{id: guid, kind: text}], pcrs: [int]}; set: suspended
function Get-WinhostBitLocker {
    # Without the feature there is no cmdlet, and no encrypted volume.
    if (-not (Test-WinhostCommand 'Get-BitLockerVolume')) {
        return
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        $state = @{
            protection = ConvertTo-WinhostKebab "$($volume.ProtectionStatus)"
            volume_type = ConvertTo-WinhostKebab "$($volume.VolumeType)"
            # For a locked volume, these two are not reported.
            conversion = Read-WinhostValue { ConvertTo-WinhostKebab "$(Assert-WinhostValue $volume.VolumeStatus)" }
            percentage = Read-WinhostValue { [int](Assert-WinhostValue $volume.EncryptionPercentage) }
            suspended = $null
            protectors = @()
            pcrs = @()
        }
        # For a volume that was never encrypted, the other properties are empty.
        if ("$($volume.VolumeStatus)" -cne 'FullyDecrypted' -or "$($volume.KeyProtector)" -cne '') {
            Assert-WinhostPart 'Read-WinhostEncryption'
            Read-WinhostEncryption $volume $state
        }
        @{ key = @{ volume = "$($volume.MountPoint)" }; state = $state }
    }
}

function Read-WinhostEncryption {
    param($Volume, $State)
    $State.suspended = Read-WinhostValue { Read-WinhostSuspension $Volume }
    $State.protectors = Read-WinhostList {
        # Only id and kind are returned: the other properties could unlock the volume.
        foreach ($protector in @($Volume.KeyProtector)) {
            if ($null -ne $protector) {
                @{ id = ConvertTo-WinhostGuid $protector.KeyProtectorId; kind = ConvertTo-WinhostKebab "$($protector.KeyProtectorType)" }
            }
        }
    }
    $State.pcrs = Read-WinhostList { Read-WinhostPcrs $Volume }
}

function Find-WinhostEncryptableVolume {
    param($Volume)
    $space = 'root\CIMV2\Security\MicrosoftVolumeEncryption'
    foreach ($each in @(Read-WinhostCached 'encryptable' { Get-CimInstance -Namespace $space -ClassName Win32_EncryptableVolume -ErrorAction Stop })) {
        # The mount point is the drive letter, or the volume's id if it has no letter.
        if (@("$($each.DriveLetter)", "$($each.DeviceID)") -contains "$($Volume.MountPoint)") {
            return $each
        }
    }
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' "Windows tells nothing of the volume $($Volume.MountPoint) in $space."
}

function Read-WinhostSuspension {
    param($Volume)
    # A volume can only be suspended if it is encrypted and its protection is off.
    if ("$($Volume.ProtectionStatus)" -cne 'Off' -or "$($Volume.VolumeStatus)" -ceq 'FullyDecrypted') {
        return $null
    }
    # Restarts are counted only for the Windows volume. Others stay suspended until they are resumed explicitly.
    if ("$($Volume.VolumeType)" -cne 'OperatingSystem') {
        return 0
    }
    $result = Invoke-CimMethod -InputObject (Find-WinhostEncryptableVolume $Volume) -MethodName GetSuspendCount -ErrorAction Stop
    # ERROR_NOT_SUPPORTED, as such or as an HRESULT: the volume is not suspended.
    if (@(50, 2147942450) -contains (Read-WinhostField $result 'ReturnValue')) {
        return $null
    }
    [int](Read-WinhostMethodResult $result 'SuspendCount')
}

function Read-WinhostMethodResult {
    param($Result, [string]$Name)
    # A CIM method that fails returns a code, and raises no error.
    $code = [long](Read-WinhostField $Result 'ReturnValue')
    if ($code -ne 0) {
        Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' ('Windows does not tell {0}: 0x{1:X8}' -f $Name, $code)
    }
    Assert-WinhostValue $Result.$Name
}

function Read-WinhostPcrs {
    param($Volume)
    foreach ($protector in @($Volume.KeyProtector)) {
        if ($null -ne $protector -and "$($protector.KeyProtectorType)" -like 'Tpm*') {
            $arguments = @{ VolumeKeyProtectorID = "$($protector.KeyProtectorId)" }
            $result = Invoke-CimMethod -InputObject (Find-WinhostEncryptableVolume $Volume) -MethodName GetKeyProtectorPlatformValidationProfile -Arguments $arguments -ErrorAction Stop
            foreach ($register in @(Read-WinhostMethodResult $result 'PlatformValidationProfile')) {
                [int]$register
            }
            return
        }
    }
}

function Set-WinhostBitLocker {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('suspended')
    Assert-WinhostAdministrator
    $restarts = $Desired.suspended
    if ($null -ne $restarts -and ("$restarts" -notmatch '\A([0-9]|1[0-5])\z' -or $restarts -is [string])) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'suspended is a number of restarts, 0 to 15, or nothing.'
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        if (Test-WinhostText "$($volume.MountPoint)" "$($Key.volume)" 'OrdinalIgnoreCase') {
            Write-WinhostSuspension $volume $restarts
        }
    }
}

function Write-WinhostSuspension {
    param($Volume, $Restarts)
    if ("$($Volume.VolumeStatus)" -cne 'FullyEncrypted') {
        Stop-Winhost 'Winhost.WrongState' 'InvalidOperation' "The volume is $($Volume.VolumeStatus): there is nothing to suspend, or it is under way."
    }
    if ($null -eq $Restarts) {
        $null = Resume-BitLocker -MountPoint "$($Volume.MountPoint)" -Confirm:$false -ErrorAction Stop
        return
    }
    # If the key is not proven to be stored elsewhere, the protector may be the only access to the data.
    if ($null -eq (Find-WinhostEscrowRecord $Volume)) {
        Stop-Winhost 'Winhost.NotEscrowed' 'InvalidOperation' 'Nobody has proven that the recovery key of this volume is kept elsewhere: do that first.'
    }
    $null = Suspend-BitLocker -MountPoint "$($Volume.MountPoint)" -RebootCount $Restarts -Confirm:$false -ErrorAction Stop
}
