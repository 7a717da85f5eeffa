# key {instance: text}   state {name: text, service: text or null, mode: standard | raid | virtual | other}
# Modes by driver service, because the names of controllers are not uniform.
$script:WinhostControllerModes = @{
    standard = @('stornvme', 'storahci', 'pciide', 'atapi', 'intelide', 'msahci', 'sdstor')
    raid = @('iaStorA', 'iaStorAC', 'iaStorAV', 'iaStorAVC', 'iaStorB', 'iaStorV', 'iaStorVD', 'iaVROC', 'rcraid', 'rcbottom', 'megasas', 'megasas2i', 'megasas35i', 'percsas2i', 'percsas3i', 'HpSAMD', 'SmartPqi', 'arcsas', 'adp80xx', 'vsmraid', 'mv_inc')
    virtual = @('spaceport', 'iScsiPrt', 'vhdmp', 'storvsc', 'pvscsi', 'vioscsi', 'viostor')
}

function Get-WinhostStorageController {
    foreach ($device in @(Find-WinhostPnpDevices '*')) {
        if (@('SCSIAdapter', 'HDC') -contains "$($device.Class)") {
            $service = Read-WinhostField $device 'Service'
            $mode = 'other'
            foreach ($known in @('standard', 'raid', 'virtual')) {
                if ($script:WinhostControllerModes[$known] -contains "$service") {
                    $mode = $known
                }
            }
            $state = @{ name = "$($device.Name)"; service = $service; mode = $mode }
            @{ key = @{ instance = "$($device.InstanceId)" }; state = $state }
        }
    }
}
