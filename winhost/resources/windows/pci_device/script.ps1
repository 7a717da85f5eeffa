# key {location: path, device: ids}   state {instance, name, kind, device_class: text, problem: int, driver, driver_version, driver_model: text or null, post_path: bool, ranges: [{start, length: bytes}], base_class, device_type: int, acs: int or null, rmrr, line_interrupts_only, pcie_control, tunneled: bool, displays: int, vram: bytes or null, numa: int or null}

# Property keys by number, as in Microsoft's SurveyDDA.ps1: Windows Server 2016 does not know all of them by name.
$script:WinhostPciKeys = @{
    device_type = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 1'
    base_class = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 3'
    sub_class = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 4'
    acs = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 31'
    rmrr = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 34'
    post_path = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 37'
    tunneled = '{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62} 47'
    pcie_control = '{D817FC28-793E-4B9E-9970-469D8BE63073} 17'
    numa = '{540B947E-8B40-45BC-A8A2-6A0B894CBDA2} 3'
    locations = 'DEVPKEY_Device_LocationPaths'
    parent = 'DEVPKEY_Device_Parent'
    driver = 'DEVPKEY_Device_Driver'
    driver_version = 'DEVPKEY_Device_DriverVersion'
    bus = 'DEVPKEY_Device_BusNumber'
    address = 'DEVPKEY_Device_Address'
}

function Get-WinhostPciDevice {
    foreach ($function in @(Find-WinhostPciFunctions)) {
        $entity = $function.entity
        $state = @{
            instance = $function.instance
            name = "$($entity.Name)"
            kind = Read-WinhostValue { Read-WinhostPciKind $function }
            device_class = "$($entity.Class)"
            problem = Read-WinhostValue { [int]$entity.ConfigManagerErrorCode }
            driver = Read-WinhostValue { $entity.Service }
            driver_version = Read-WinhostValue { Read-WinhostPciValue $function 'driver_version' }
            driver_model = Read-WinhostValue { Read-WinhostDriverModel $function 'current' }
            post_path = Read-WinhostValue { [bool](Assert-WinhostValue (Read-WinhostPciValue $function 'post_path')) }
            ranges = Read-WinhostList { Read-WinhostPciRanges $function }
            base_class = Read-WinhostValue { [int](Assert-WinhostValue $function.base_class) }
            device_type = Read-WinhostValue { [int](Assert-WinhostValue (Read-WinhostPciValue $function 'device_type')) }
            acs = Read-WinhostValue { Read-WinhostPciValue $function 'acs' }
            rmrr = Read-WinhostValue { [bool](Assert-WinhostValue (Read-WinhostPciValue $function 'rmrr')) }
            line_interrupts_only = Read-WinhostValue { Test-WinhostLineInterruptsOnly $function }
            pcie_control = Read-WinhostValue { Test-WinhostPcieControl $function }
            tunneled = Read-WinhostValue { [bool](Assert-WinhostValue (Read-WinhostPciValue $function 'tunneled')) }
            displays = Read-WinhostValue { Measure-WinhostDisplays $function }
            vram = Read-WinhostValue { Read-WinhostVram $function }
            numa = Read-WinhostValue { Read-WinhostPciValue $function 'numa' }
        }
        @{ key = $function.key; state = $state }
    }
}

# ---- finding display functions and the functions in their slots

function Find-WinhostPnpDevices {
    param([string]$Pattern)
    foreach ($entity in @(Read-WinhostCached 'pnp' { Get-PnpDevice -PresentOnly -ErrorAction Stop })) {
        if ($entity.InstanceId -like $Pattern) {
            $entity
        }
    }
}

function Read-WinhostPnpProperty {
    param($Entities, [string]$KeyName)
    # Reads one property of many devices per call, so that an unknown property does not affect the others.
    $table = @{}
    if (@($Entities).Count -eq 0) {
        return $table
    }
    foreach ($property in @(Get-PnpDeviceProperty -InputObject $Entities -KeyName $KeyName -ErrorAction Stop)) {
        # A property that a device does not have is returned without data.
        if ($null -ne $property.PSObject.Properties['Data']) {
            $table[$property.DeviceID] = $property.Data
        }
    }
    $table
}

function Read-WinhostPciValue {
    param($Function, [string]$Property)
    $table = Read-WinhostCached "pci $Property" {
        $entities = @(foreach ($each in @(Find-WinhostPciFunctions)) { $each.entity })
        Read-WinhostPnpProperty $entities $script:WinhostPciKeys[$Property]
    }
    $table[$Function.instance]
}

function Select-WinhostRootPath {
    param($Paths)
    foreach ($path in @($Paths)) {
        if ("$path" -like 'PCIROOT(*') {
            return "$path"
        }
    }
}

function Find-WinhostAllPci {
    Read-WinhostCached 'pci' {
        # PCIP: a dismounted device, which the pass-through driver owns.
        $entities = @(Find-WinhostPnpDevices 'PCI\*') + @(Find-WinhostPnpDevices 'PCIP\*')
        $locations = Read-WinhostPnpProperty $entities $script:WinhostPciKeys.locations
        $classes = Read-WinhostPnpProperty $entities $script:WinhostPciKeys.base_class
        foreach ($entity in $entities) {
            $path = Select-WinhostRootPath $locations[$entity.InstanceId]
            if ($null -ne $path) {
                $location = $path.ToUpperInvariant()
                @{
                    entity = $entity
                    instance = "$($entity.InstanceId)"
                    path = $path
                    slot = $location -replace '..\)$', ''
                    base_class = $classes[$entity.InstanceId]
                    key = @{ location = $location; device = ConvertTo-WinhostPciIds $entity.InstanceId }
                }
            }
        }
    }
}

function ConvertTo-WinhostPciIds {
    param([string]$Instance)
    # Returns the part of PCI\VEN_10DE&DEV_2684&SUBSYS_16F310DE&REV_A1\4&... that does not depend on slot and revision.
    $parts = @($Instance.Split('\'))
    if ($parts.Count -lt 2) {
        return ''
    }
    ($parts[1] -replace '&REV_.*$', '').ToUpperInvariant()
}

function Find-WinhostPciFunctions {
    Read-WinhostCached 'pci functions' {
        $all = @(Find-WinhostAllPci)
        $slots = @()
        foreach ($function in $all) {
            # Dismounted devices whose class is no longer reported stay in the list, because winhost dismounts GPUs.
            $unclassified = $function.instance -like 'PCIP\*' -and $null -eq $function.base_class
            if ($unclassified -or (Test-WinhostDisplay $function)) {
                $slots += $function.slot
            }
        }
        foreach ($function in $all) {
            if ($slots -contains $function.slot) {
                $function
            }
        }
    }
}

function Test-WinhostDisplay {
    param($Function)
    $Function.base_class -eq 3 -or $Function.entity.Class -eq 'Display'
}

# ---- single properties

function Read-WinhostPciKind {
    param($Function)
    if (Test-WinhostDisplay $Function) {
        return 'display'
    }
    $class = Assert-WinhostValue $Function.base_class
    if ($class -eq 4) {
        return 'audio'
    }
    # Class 0C is serial buses, and its subclass 03 is USB.
    if ($class -eq 12 -and (Read-WinhostPciValue $Function 'sub_class') -eq 3) {
        return 'usb'
    }
    'other'
}

function Find-WinhostAllocated {
    param($Function, [string]$Class)
    # The whole list is read once, because a query for each device would take a second.
    foreach ($row in @(Read-WinhostCached 'allocated' { Get-CimInstance -ClassName Win32_PnPAllocatedResource -ErrorAction Stop })) {
        if ($row.Dependent.DeviceID -eq $Function.instance -and $row.Antecedent.CimSystemProperties.ClassName -eq $Class) {
            $row.Antecedent
        }
    }
}

function Read-WinhostPciRanges {
    param($Function)
    $ends = Read-WinhostCached 'memory ends' {
        $table = @{}
        foreach ($range in @(Get-CimInstance -ClassName Win32_DeviceMemoryAddress -ErrorAction Stop)) {
            $start = "$($range.StartingAddress)"
            # A bridge's window may start at the same address as the first range behind it. The shorter range is that of
            # the device.
            if (-not $table.ContainsKey($start) -or [long]$range.EndingAddress -lt $table[$start]) {
                $table[$start] = [long]$range.EndingAddress
            }
        }
        $table
    }
    $ranges = @(Find-WinhostAllocated $Function 'Win32_DeviceMemoryAddress')
    foreach ($range in @($ranges | Sort-Object -Property StartingAddress)) {
        $start = [long]$range.StartingAddress
        $end = Assert-WinhostValue $ends["$start"]
        @{ start = $start; length = $end - $start + 1 }
    }
}

function Test-WinhostLineInterruptsOnly {
    param($Function)
    $lines = 0
    foreach ($interrupt in @(Find-WinhostAllocated $Function 'Win32_IRQResource')) {
        $number = [long]$interrupt.IRQNumber
        # The numbers of message-signaled interrupts count down from 2^32, as signed or unsigned values.
        if ($number -lt 0 -or $number -ge 2147483648) {
            return $false
        }
        $lines += 1
    }
    $lines -gt 0
}

function Test-WinhostPcieControl {
    param($Function)
    $control = Read-WinhostCached 'root control' {
        $table = @{}
        $roots = @(Find-WinhostPnpDevices 'ACPI\PNP0A0*')
        $locations = Read-WinhostPnpProperty $roots $script:WinhostPciKeys.locations
        $controls = Read-WinhostPnpProperty $roots $script:WinhostPciKeys.pcie_control
        foreach ($root in $roots) {
            $path = Select-WinhostRootPath $locations[$root.InstanceId]
            if ($null -ne $path) {
                $table[$path] = $controls[$root.InstanceId]
            }
        }
        $table
    }
    # The location path of a device begins with that of its root bus.
    [bool](Assert-WinhostValue $control[@($Function.path.Split('#'))[0]])
}

function Measure-WinhostDisplays {
    param($Function)
    $parents = Read-WinhostCached 'display parents' { Read-WinhostPnpProperty @(Find-WinhostPnpDevices 'DISPLAY\*') $script:WinhostPciKeys.parent }
    $displays = 0
    foreach ($parent in $parents.Values) {
        if ("$parent" -eq $Function.instance) {
            $displays += 1
        }
    }
    $displays
}

function Read-WinhostVram {
    param($Function)
    $driver = Read-WinhostPciValue $Function 'driver'
    if ($null -ne $driver) {
        $size = Read-WinhostRegistry "SYSTEM\CurrentControlSet\Control\Class\$driver" 'HardwareInformation.qwMemorySize'
        if ($null -ne $size) {
            [long]$size
        }
    }
}

function Read-WinhostDriverModels {
    $models = @{}
    $query = @('--query-gpu=pci.bus_id,driver_model.current,driver_model.pending', '--format=csv,noheader')
    $ended = Invoke-WinhostNative 'nvidia-smi.exe' $query 60
    # 6: no device was found; 9: the driver is not loaded. In both cases there are no driver models.
    if ($null -eq $ended -or @(6, 9) -contains $ended.code) {
        return $models
    }
    if ($ended.code -ne 0) {
        Stop-Winhost 'Winhost.ProgramFailed' 'InvalidResult' "nvidia-smi.exe: $($ended.code) $($ended.output)"
    }
    foreach ($line in @($ended.output.Split("`n"))) {
        $fields = @($line.Split(','))
        if ($fields.Count -eq 3) {
            $models[$fields[0].Trim()] = @{ current = $fields[1].Trim(); pending = $fields[2].Trim() }
        }
    }
    $models
}

function Read-WinhostPciAddress {
    param($Function)
    # Returns the address in the format of nvidia-smi. In Windows, the high bits of the bus number are the segment, and
    # those of the address are the device number.
    $bus = [int](Assert-WinhostValue (Read-WinhostPciValue $Function 'bus'))
    $address = [int](Assert-WinhostValue (Read-WinhostPciValue $Function 'address'))
    $parts = ($bus -shr 8), ($bus -band 255), ($address -shr 16), ($address -band 65535)
    '{0:X8}:{1:X2}:{2:X2}.{3:X}' -f $parts
}

function Read-WinhostDriverModel {
    param($Function, [string]$When)
    if (-not (Test-WinhostDisplay $Function)) {
        return $null
    }
    $models = Read-WinhostCached 'driver models' { Read-WinhostDriverModels }
    if ($models.Count -eq 0) {
        return $null
    }
    $address = Read-WinhostPciAddress $Function
    if ($models.ContainsKey($address) -and @('WDDM', 'TCC', 'MCDM') -contains $models[$address][$When]) {
        return $models[$address][$When]
    }
}
