# key {}   state {hostname, machine_id, caption: text, product_type, sku: int, edition_id, installation_type, product_options: text, build, revision: int, display_version: text or null, language, architecture: text}
function Get-WinhostOperatingSystem {
    $system = Get-CimInstance -ClassName Win32_OperatingSystem -ErrorAction Stop
    $windows = 'SOFTWARE\Microsoft\Windows NT\CurrentVersion'
    $options = 'SYSTEM\CurrentControlSet\Control\ProductOptions'
    $environment = 'SYSTEM\CurrentControlSet\Control\Session Manager\Environment'
    $state = @{
        hostname = "$($system.CSName)"
        machine_id = Read-WinhostValue { "$((Get-CimInstance -ClassName Win32_ComputerSystemProduct -ErrorAction Stop).UUID)".ToLowerInvariant() }
        caption = "$($system.Caption)".Trim()
        product_type = [int]$system.ProductType
        sku = [int]$system.OperatingSystemSKU
        edition_id = Read-WinhostValue { Assert-WinhostValue (Read-WinhostRegistry $windows 'EditionID') }
        installation_type = Read-WinhostValue { Assert-WinhostValue (Read-WinhostRegistry $windows 'InstallationType') }
        product_options = Read-WinhostValue { Assert-WinhostValue (Read-WinhostRegistry $options 'ProductType') }
        build = [int]$system.BuildNumber
        revision = Read-WinhostValue { [int](Assert-WinhostValue (Read-WinhostRegistry $windows 'UBR')) }
        display_version = Read-WinhostValue { Read-WinhostRegistry $windows 'DisplayVersion' }
        language = "$(@($system.MUILanguages)[0])"
        architecture = Read-WinhostValue { Assert-WinhostValue (Read-WinhostRegistry $environment 'PROCESSOR_ARCHITECTURE') }
    }
    @{ key = @{}; state = $state }
}
