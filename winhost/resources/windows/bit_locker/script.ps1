# key {volume: mount point}   state {protection: on | off | unknown, volume_type: text, conversion: text, percentage: int, suspended: int or null, protectors: [{id: guid, kind: text}], pcrs: [int]}; set: suspended
function Get-WinhostBitLocker {
    # Without the feature there is no cmdlet, and no volume is encrypted by it.
    if (-not (Test-WinhostCommand 'Get-BitLockerVolume')) {
        return
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        $state = @{
            protection = ConvertTo-WinhostKebab "$($volume.ProtectionStatus)"
            volume_type = ConvertTo-WinhostKebab "$($volume.VolumeType)"
            # A locked volume tells neither.
            conversion = Read-WinhostValue { ConvertTo-WinhostKebab "$(Assert-WinhostValue $volume.VolumeStatus)" }
            percentage = Read-WinhostValue { [int](Assert-WinhostValue $volume.EncryptionPercentage) }
            suspended = $null
            protectors = @()
            pcrs = @()
        }
        # A volume that was never encrypted has none of these.
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
        # Id and kind, and nothing else of them: the rest opens the volume.
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
        # Its mount point is its letter, or its id where it has none.
        if (@("$($each.DriveLetter)", "$($each.DeviceID)") -contains "$($Volume.MountPoint)") {
            return $each
        }
    }
    Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' "Windows tells nothing of the volume $($Volume.MountPoint) in $space."
}

function Read-WinhostSuspension {
    param($Volume)
    # Restarts are counted only while an encrypted volume is open to everybody.
    if ("$($Volume.ProtectionStatus)" -cne 'Off' -or "$($Volume.VolumeStatus)" -ceq 'FullyDecrypted') {
        return $null
    }
    # Restarts are counted for the volume of Windows alone: another one stays suspended until somebody says so.
    if ("$($Volume.VolumeType)" -cne 'OperatingSystem') {
        return 0
    }
    $told = Invoke-CimMethod -InputObject (Find-WinhostEncryptableVolume $Volume) -MethodName GetSuspendCount -ErrorAction Stop
    # ERROR_NOT_SUPPORTED, by itself or as an HRESULT: it is not suspended.
    if (@(50, 2147942450) -contains (Read-WinhostField $told 'ReturnValue')) {
        return $null
    }
    [int](Read-WinhostMethodResult $told 'SuspendCount')
}

function Read-WinhostMethodResult {
    param($Told, [string]$Name)
    # A method that fails ends with a code, not with an error.
    $code = [long](Read-WinhostField $Told 'ReturnValue')
    if ($code -ne 0) {
        Stop-Winhost 'Winhost.NotExposed' 'NotImplemented' ('Windows does not tell {0}: 0x{1:X8}' -f $Name, $code)
    }
    Assert-WinhostValue $Told.$Name
}

function Read-WinhostPcrs {
    param($Volume)
    foreach ($protector in @($Volume.KeyProtector)) {
        if ($null -ne $protector -and "$($protector.KeyProtectorType)" -like 'Tpm*') {
            $asked = @{ VolumeKeyProtectorID = "$($protector.KeyProtectorId)" }
            $told = Invoke-CimMethod -InputObject (Find-WinhostEncryptableVolume $Volume) -MethodName GetKeyProtectorPlatformValidationProfile -Arguments $asked -ErrorAction Stop
            foreach ($register in @(Read-WinhostMethodResult $told 'PlatformValidationProfile')) {
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
    # A protector of which nobody has proven that its key is kept elsewhere may be the last way to the data.
    if ($null -eq (Find-WinhostEscrowRecord $Volume)) {
        Stop-Winhost 'Winhost.NotEscrowed' 'InvalidOperation' 'Nobody has proven that the recovery key of this volume is kept elsewhere: do that first.'
    }
    $null = Suspend-BitLocker -MountPoint "$($Volume.MountPoint)" -RebootCount $Restarts -Confirm:$false -ErrorAction Stop
}
