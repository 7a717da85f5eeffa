# key {volume: mount point}   state {proof: none | active-directory | entra | typed, last_group: text or null, protector: guid or null}; set: proof, last_group; how {secret: the last six digits}
function Get-WinhostKeyEscrow {
    if (-not (Test-WinhostCommand 'Get-BitLockerVolume')) {
        return
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        $state = @{ proof = 'none'; last_group = $null; protector = $null }
        if (Test-WinhostRecords) {
            Assert-WinhostPart 'Read-WinhostEscrow'
            Read-WinhostEscrow $volume $state
        }
        @{ key = @{ volume = "$($volume.MountPoint)" }; state = $state }
    }
}

function Read-WinhostEscrow {
    param($Volume, $State)
    $record = Find-WinhostEscrowRecord $Volume
    if ($null -ne $record) {
        $State.proof = "$($record.proof)"
        $State.last_group = $record.last_group
        $State.protector = "$($record.protector)"
    }
}

function Find-WinhostEscrowRecord {
    param($Volume)
    # A record is valid only while the volume has that protector.
    $stored = Read-WinhostRegistry $script:WinhostRecordsKey "escrow $("$($Volume.MountPoint)".ToLowerInvariant())"
    if ($null -eq $stored) {
        return $null
    }
    $record = ConvertFrom-Json -InputObject "$stored" -ErrorAction Stop
    foreach ($protector in @(Find-WinhostRecoveryProtectors $Volume)) {
        if ((ConvertTo-WinhostGuid $protector.KeyProtectorId) -eq "$($record.protector)") {
            return $record
        }
    }
}

function Find-WinhostRecoveryProtectors {
    param($Volume)
    foreach ($protector in @($Volume.KeyProtector)) {
        if ($null -ne $protector -and "$($protector.KeyProtectorType)" -ceq 'RecoveryPassword') {
            $protector
        }
    }
}

function Set-WinhostKeyEscrow {
    param($Key, $Desired, $How)
    Assert-WinhostDesired $Desired @('proof', 'last_group')
    Assert-WinhostAdministrator
    $proof = "$(Read-WinhostField $Desired 'proof')"
    if (@('none', 'active-directory', 'entra', 'typed') -cnotcontains $proof) {
        Stop-Winhost 'Winhost.BadRequest' 'InvalidArgument' 'proof is none, active-directory, entra or typed.'
    }
    foreach ($volume in @(Get-BitLockerVolume -ErrorAction Stop)) {
        if (Test-WinhostText "$($volume.MountPoint)" "$($Key.volume)" 'OrdinalIgnoreCase') {
            Write-WinhostEscrow $volume $proof (Read-WinhostField $Desired 'last_group') $How
        }
    }
}

function Write-WinhostEscrow {
    param($Volume, [string]$Proof, $Reference, $How)
    $name = "escrow $("$($Volume.MountPoint)".ToLowerInvariant())"
    if ($Proof -ceq 'none') {
        Write-WinhostRegistry $script:WinhostRecordsKey $name $null
        return
    }
    $protectors = @(Find-WinhostRecoveryProtectors $Volume)
    if ($protectors.Count -eq 0) {
        Stop-Winhost 'Winhost.NoRecoveryKey' 'ObjectNotFound' 'The volume has no recovery password: add one first.'
    }
    if ($Proof -ceq 'typed') {
        $proven = Find-WinhostTypedKey $protectors "$(Read-WinhostField $How 'secret')"
    }
    else {
        $proven = $protectors[0]
        Send-WinhostRecoveryKey $Volume $proven $Proof
    }
    $record = @{ proof = $Proof; last_group = $Reference; protector = ConvertTo-WinhostGuid $proven.KeyProtectorId }
    Write-WinhostRegistry $script:WinhostRecordsKey $name (ConvertTo-WinhostAscii (ConvertTo-Json -InputObject $record -Compress -ErrorAction Stop))
}

function Find-WinhostTypedKey {
    param($Protectors, [string]$Digits)
    # Compares on the host: neither the digits nor the key leave it.
    if ($Digits -match '\A[0-9]{6}\z') {
        foreach ($protector in $Protectors) {
            if ("$($protector.RecoveryPassword)".EndsWith("-$Digits", [System.StringComparison]::Ordinal)) {
                return $protector
            }
        }
    }
    Stop-Winhost 'Winhost.WrongDigits' 'PermissionDenied' 'These are not the last six digits of the recovery key of this volume.'
}

function Send-WinhostRecoveryKey {
    param($Volume, $Protector, [string]$Proof)
    # The directory accepts a key that it already has. Success of this call is the proof.
    $drive = "$($Volume.MountPoint)"
    $id = "$($Protector.KeyProtectorId)"
    if ($Proof -ceq 'entra') {
        $null = BackupToAAD-BitLockerKeyProtector -MountPoint $drive -KeyProtectorId $id -Confirm:$false -ErrorAction Stop
    }
    else {
        $null = Backup-BitLockerKeyProtector -MountPoint $drive -KeyProtectorId $id -Confirm:$false -ErrorAction Stop
    }
}
