# Whether the address of a guest is free.

function Assert-WinhostAddressFree {
    param($Address, $Vm)
    # Two machines with one address cut each other off. What does not answer a ping has still told its MAC address.
    if ($null -eq $Address) {
        return
    }
    $ours = @(foreach ($adapter in @(Get-VMNetworkAdapter -VM $Vm -ErrorAction Stop)) { "$($adapter.MacAddress)" })
    $asked = $Address.Split('/')[0]
    $taken = [bool](Test-Connection -ComputerName $asked -Count 2 -Quiet -ErrorAction Stop)
    foreach ($neighbour in @(Get-NetNeighbor -AddressFamily IPv4 -ErrorAction Stop)) {
        $mac = "$($neighbour.LinkLayerAddress)".Replace('-', '')
        # Nobody told who has all noughts; and this VM may have been there before.
        if ("$($neighbour.IPAddress)" -ceq $asked -and $mac -cnotmatch '^0*\z' -and $ours -notcontains $mac) {
            $taken = $true
        }
    }
    if ($taken) {
        Stop-Winhost 'Winhost.AddressTaken' 'ResourceExists' "Somebody in the network has the address $asked already."
    }
}
