# A check that the address of a guest is unused.

function Assert-WinhostAddressFree {
    param($Address, $Vm)
    # Two machines with one address disconnect each other. A machine that does not answer a ping still has an entry with
    # its MAC address among the neighbours.
    if ($null -eq $Address) {
        return
    }
    $ours = @(foreach ($adapter in @(Get-VMNetworkAdapter -VM $Vm -ErrorAction Stop)) { "$($adapter.MacAddress)" })
    $desired = $Address.Split('/')[0]
    $taken = [bool](Test-Connection -ComputerName $desired -Count 2 -Quiet -ErrorAction Stop)
    foreach ($neighbour in @(Get-NetNeighbor -AddressFamily IPv4 -ErrorAction Stop)) {
        $mac = "$($neighbour.LinkLayerAddress)".Replace('-', '')
        # A MAC address of zeros is an unresolved entry. This VM itself may have used the address before.
        if ("$($neighbour.IPAddress)" -ceq $desired -and $mac -cnotmatch '^0*\z' -and $ours -notcontains $mac) {
            $taken = $true
        }
    }
    if ($taken) {
        Stop-Winhost 'Winhost.AddressTaken' 'ResourceExists' "Somebody in the network has the address $desired already."
    }
}
