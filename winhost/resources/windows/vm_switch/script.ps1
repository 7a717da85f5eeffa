# key {switch: guid}   state {name: text, kind: text, adapter: text or null, management_os: bool}
function Get-WinhostVmSwitch {
    Assert-WinhostHyperV
    foreach ($switch in @(Get-VMSwitch -ErrorAction Stop)) {
        $adapter = "$($switch.NetAdapterInterfaceDescription)"
        if ($adapter.Length -eq 0) {
            $adapter = $null
        }
        $state = @{
            name = "$($switch.Name)"
            kind = ConvertTo-WinhostKebab "$($switch.SwitchType)"
            adapter = $adapter
            management_os = [bool]$switch.AllowManagementOS
        }
        @{ key = @{ switch = "$($switch.Id)" }; state = $state }
    }
}
