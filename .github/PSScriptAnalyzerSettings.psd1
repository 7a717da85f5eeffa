# Our scripts run in Windows PowerShell 5.1 as every host has it, and in PowerShell 7 where the tests run.
@{
    IncludeRules = @(
        'PSUseCompatibleSyntax'
        'PSUseCompatibleCommands'
        'PSUseCompatibleTypes'
    )
    Rules = @{
        PSUseCompatibleSyntax = @{
            Enable = $true
            TargetVersions = @('5.1', '7.0')
        }
        PSUseCompatibleCommands = @{
            Enable = $true
            # Windows Server 2016 and 2019; for later ones there are no profiles, and 5.1 has not changed since.
            TargetProfiles = @(
                'win-8_x64_10.0.14393.0_5.1.14393.2791_x64_4.0.30319.42000_framework'
                'win-8_x64_10.0.17763.0_5.1.17763.316_x64_4.0.30319.42000_framework'
            )
            # Of roles and features that a host has or has not, as the profiled ones may not have had: the scripts ask
            # first, and the stand-ins hold them to their documented parameters.
            IgnoreCommands = @(
                'Add-VMAssignableDevice'
                'Add-VMDvdDrive'
                'Add-VMHardDiskDrive'
                'Backup-BitLockerKeyProtector'
                'BackupToAAD-BitLockerKeyProtector'
                'Connect-VMNetworkAdapter'
                'Dismount-VMHostAssignableDevice'
                'Get-BitLockerVolume'
                'Get-VHD'
                'Get-VM'
                'Get-VMAssignableDevice'
                'Get-VMComPort'
                'Get-VMDvdDrive'
                'Get-VMFirmware'
                'Get-VMGpuPartitionAdapter'
                'Get-VMHardDiskDrive'
                'Get-VMHost'
                'Get-VMHostPartitionableGpu'
                'Get-VMIntegrationService'
                'Get-VMNetworkAdapter'
                'Get-VMNetworkAdapterVlan'
                'Get-VMPartitionableGpu'
                'Get-VMProcessor'
                'Get-VMSnapshot'
                'Get-VMSwitch'
                'Get-WindowsFeature'
                'Install-WindowsFeature'
                'Mount-VMHostAssignableDevice'
                'New-VM'
                'New-VMSwitch'
                'Remove-VM'
                'Remove-VMAssignableDevice'
                'Remove-VMSwitch'
                'Resize-VHD'
                'Resume-BitLocker'
                'Resume-VM'
                'Save-VM'
                'Set-VM'
                'Set-VMComPort'
                'Set-VMDvdDrive'
                'Set-VMFirmware'
                'Set-VMMemory'
                'Set-VMNetworkAdapter'
                'Set-VMNetworkAdapterVlan'
                'Set-VMProcessor'
                'Start-VM'
                'Stop-VM'
                'Suspend-BitLocker'
                'Suspend-VM'
                'Test-VHD'
                'Uninstall-WindowsFeature'
            )
        }
        PSUseCompatibleTypes = @{
            Enable = $true
            TargetProfiles = @(
                'win-8_x64_10.0.14393.0_5.1.14393.2791_x64_4.0.30319.42000_framework'
                'win-8_x64_10.0.17763.0_5.1.17763.316_x64_4.0.30319.42000_framework'
            )
            # Of PowerShell 7, in a branch of its own: there .NET makes a folder with its rights in this way.
            IgnoreTypes = @('System.IO.FileSystemAclExtensions')
        }
    }
}
