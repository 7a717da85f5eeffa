# Firmware variables and volumes without a drive letter.
# No cmdlet accesses all of them, so constant C# does. Compiling it starts csc.exe, so a whole host is read without it unless
# winhost has set up a dual boot there.
$script:WinhostGlobalVariables = '{8be4df61-93ca-11d2-aa0d-00e098032b8c}'
# C# 5, the version that Windows PowerShell compiles. The code uses the Windows API because .NET Framework refuses paths
# that begin with \\?\.
$script:WinhostNativeSource = @'
using System;
using System.Collections.Generic;
using System.ComponentModel;
using System.IO;
using System.Runtime.InteropServices;
using System.Security.Cryptography;
using Microsoft.Win32.SafeHandles;

public static class WinhostNative
{
    [StructLayout(LayoutKind.Sequential, Pack = 4)]
    private struct Privilege
    {
        public uint Count;
        public long Luid;
        public uint Attributes;
    }

    // FILETIME is two DWORDs, so that nothing in WIN32_FIND_DATAW is aligned to 8 bytes.
    [StructLayout(LayoutKind.Sequential, Pack = 4, CharSet = CharSet.Unicode)]
    private struct Found
    {
        public uint Attributes;
        public long Created;
        public long Accessed;
        public long Written;
        public uint SizeHigh;
        public uint SizeLow;
        public uint Reserved0;
        public uint Reserved1;
        [MarshalAs(UnmanagedType.ByValTStr, SizeConst = 260)]
        public string Name;
        [MarshalAs(UnmanagedType.ByValTStr, SizeConst = 14)]
        public string Short;
    }

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern uint GetFirmwareEnvironmentVariableW(string name, string space, byte[] buffer, uint size);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool SetFirmwareEnvironmentVariableW(string name, string space, byte[] value, uint size);

    [DllImport("kernel32.dll")]
    private static extern IntPtr GetCurrentProcess();

    [DllImport("kernel32.dll")]
    private static extern bool CloseHandle(IntPtr handle);

    [DllImport("advapi32.dll", SetLastError = true)]
    private static extern bool OpenProcessToken(IntPtr process, uint access, out IntPtr token);

    [DllImport("advapi32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool LookupPrivilegeValueW(string system, string name, out long luid);

    [DllImport("advapi32.dll", SetLastError = true)]
    private static extern bool AdjustTokenPrivileges(IntPtr token, bool none, ref Privilege wanted, uint size, IntPtr old, IntPtr length);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern IntPtr FindFirstFileW(string path, out Found found);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool FindNextFileW(IntPtr search, out Found found);

    [DllImport("kernel32.dll")]
    private static extern bool FindClose(IntPtr search);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool CopyFileW(string from, string to, bool refuse);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool DeleteFileW(string path);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool RemoveDirectoryW(string path);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool SetFileAttributesW(string path, uint attributes);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool CreateDirectoryW(string path, IntPtr security);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern SafeFileHandle CreateFileW(string path, uint access, uint share, IntPtr security, uint how, uint flags, IntPtr template);

    [DllImport("kernel32.dll", SetLastError = true)]
    private static extern bool DeviceIoControl(SafeFileHandle device, uint code, IntPtr input, uint inputSize, IntPtr output, uint outputSize, out uint returned, IntPtr overlapped);

    [DllImport("kernel32.dll", SetLastError = true, CharSet = CharSet.Unicode)]
    private static extern bool GetVolumeInformationW(string root, IntPtr name, uint nameSize, IntPtr serial, IntPtr longest, out uint flags, IntPtr system, uint systemSize);

    public static byte[] Read(string name, string space)
    {
        Allow();
        for (uint size = 4096; size <= 1 << 22; size *= 4)
        {
            byte[] buffer = new byte[size];
            uint length = GetFirmwareEnvironmentVariableW(name, space, buffer, size);
            int error = Marshal.GetLastWin32Error();
            if (length > 0)
            {
                Array.Resize(ref buffer, (int)length);
                return buffer;
            }
            if (error == 203)
            {
                return null;
            }
            if (error != 122)
            {
                throw new Win32Exception(error);
            }
        }
        throw new Win32Exception(122);
    }

    public static void Write(string name, string space, byte[] value)
    {
        Allow();
        // Nothing as the value takes the variable away.
        if (!SetFirmwareEnvironmentVariableW(name, space, value, (uint)value.Length))
        {
            int error = Marshal.GetLastWin32Error();
            if (value.Length > 0 || error != 203)
            {
                throw new Win32Exception(error);
            }
        }
    }

    private static void Allow()
    {
        IntPtr token;
        if (!OpenProcessToken(GetCurrentProcess(), 0x28, out token))
        {
            throw new Win32Exception();
        }
        try
        {
            Privilege wanted = new Privilege();
            wanted.Count = 1;
            wanted.Attributes = 2;
            if (!LookupPrivilegeValueW(null, "SeSystemEnvironmentPrivilege", out wanted.Luid))
            {
                throw new Win32Exception();
            }
            // It also succeeds where the token lacks the privilege: then the error is 1300.
            bool adjusted = AdjustTokenPrivileges(token, false, ref wanted, 0, IntPtr.Zero, IntPtr.Zero);
            int error = Marshal.GetLastWin32Error();
            if (!adjusted || error != 0)
            {
                throw new Win32Exception(error);
            }
        }
        finally
        {
            CloseHandle(token);
        }
    }

    public static string[] Files(string root)
    {
        List<string> names = new List<string>();
        Collect(root, "", names, 0);
        names.Sort(StringComparer.Ordinal);
        return names.ToArray();
    }

    private static void Collect(string root, string folder, List<string> names, int depth)
    {
        Found found;
        IntPtr search = FindFirstFileW(root + folder + "*", out found);
        int error = Marshal.GetLastWin32Error();
        if (search == new IntPtr(-1))
        {
            // The root of an empty volume has not even "." in it.
            if (error == 2 && folder == "")
            {
                return;
            }
            throw new Win32Exception(error);
        }
        try
        {
            do
            {
                if (found.Name == "." || found.Name == "..")
                {
                    continue;
                }
                if ((found.Attributes & 0x10) == 0)
                {
                    names.Add(folder + found.Name);
                }
                else if ((found.Attributes & 0x400) == 0)
                {
                    if (depth >= 16 || names.Count >= 5000)
                    {
                        throw new Win32Exception(206);
                    }
                    Collect(root, folder + found.Name + "\\", names, depth + 1);
                }
            }
            while (FindNextFileW(search, out found));
            error = Marshal.GetLastWin32Error();
            if (error != 18)
            {
                throw new Win32Exception(error);
            }
        }
        finally
        {
            FindClose(search);
        }
    }

    public static void Copy(string from, string to)
    {
        if (!CopyFileW(from, to, false))
        {
            throw new Win32Exception();
        }
        // Files of a disc may be read-only, and could be neither replaced nor deleted then.
        if (!SetFileAttributesW(to, 0x80))
        {
            throw new Win32Exception();
        }
    }

    public static void Delete(string path)
    {
        if (!DeleteFileW(path))
        {
            throw new Win32Exception();
        }
        // The folder goes with its last file.
        RemoveDirectoryW(path.Substring(0, path.LastIndexOf('\\')));
    }

    public static void Folders(string root, string file)
    {
        for (int place = file.IndexOf('\\'); place > 0; place = file.IndexOf('\\', place + 1))
        {
            // It may be there.
            if (!CreateDirectoryW(root + file.Substring(0, place), IntPtr.Zero) && Marshal.GetLastWin32Error() != 183)
            {
                throw new Win32Exception();
            }
        }
    }

    public static void Dismount(string root)
    {
        // The volume itself has no backslash at its end.
        using (SafeFileHandle handle = CreateFileW(root.TrimEnd('\\'), 0x80000000, 3, IntPtr.Zero, 3, 0, IntPtr.Zero))
        {
            uint returned;
            if (handle.IsInvalid || !DeviceIoControl(handle, 0x90020, IntPtr.Zero, 0, IntPtr.Zero, 0, out returned, IntPtr.Zero))
            {
                throw new Win32Exception();
            }
        }
    }

    public static bool IsReadOnly(string root)
    {
        uint flags;
        if (!GetVolumeInformationW(root, IntPtr.Zero, 0, IntPtr.Zero, IntPtr.Zero, out flags, IntPtr.Zero, 0))
        {
            throw new Win32Exception();
        }
        return (flags & 0x80000) != 0;
    }

    public static string Hash(string path, out long length)
    {
        using (SafeFileHandle handle = CreateFileW(path, 0x80000000, 7, IntPtr.Zero, 3, 0, IntPtr.Zero))
        {
            if (handle.IsInvalid)
            {
                throw new Win32Exception();
            }
            using (FileStream stream = new FileStream(handle, FileAccess.Read))
            using (SHA256 hash = new SHA256CryptoServiceProvider())
            {
                length = stream.Length;
                return BitConverter.ToString(hash.ComputeHash(stream)).Replace("-", "").ToLowerInvariant();
            }
        }
    }
}
'@

function Add-WinhostNative {
    Add-Type -TypeDefinition $script:WinhostNativeSource -ErrorAction Stop
}

function Import-WinhostNative {
    if ($null -ne ('WinhostNative' -as [type])) {
        return
    }
    Assert-WinhostPart 'Add-WinhostNative'
    Add-WinhostNative
}

function Read-WinhostFirmwareKind {
    # Tries the registry first. Microsoft documents this value only for Windows PE.
    switch (Read-WinhostRegistry 'SYSTEM\CurrentControlSet\Control' 'PEFirmwareType') {
        1 {
            return 'bios'
        }
        2 {
            return 'uefi'
        }
    }
    try {
        $null = Read-WinhostSecureVariable 'SetupMode'
    }
    catch {
        # With a BIOS there are no firmware variables.
        if ("$($_.CategoryInfo.Category)" -ne 'NotImplemented') {
            throw
        }
        return 'bios'
    }
    'uefi'
}

function Read-WinhostSecureVariable {
    param([string]$Name)
    # Returns the bytes of a Secure Boot variable, for which there is a cmdlet; nothing if the firmware does not define it.
    try {
        $variable = Get-SecureBootUEFI -Name $Name -ErrorAction Stop
    }
    catch {
        if ("$($_.FullyQualifiedErrorId)" -notlike 'GetFWVarFailed,*' -or "$($_.CategoryInfo.Category)" -ne 'ResourceUnavailable') {
            throw
        }
        return
    }
    , [byte[]]$variable.Bytes
}

function Read-WinhostFirmwareVariable {
    param([string]$Name, [string]$Space)
    # Returns the bytes of a variable, or nothing if there is none.
    Import-WinhostNative
    $bytes = [WinhostNative]::Read($Name, $Space)
    if ($null -ne $bytes) {
        , $bytes
    }
}

function Write-WinhostFirmwareVariable {
    param([string]$Name, [string]$Space, [byte[]]$Bytes)
    # An empty value removes the variable. Callers must read it back, because some firmware accepts a value and loses it.
    Import-WinhostNative
    [WinhostNative]::Write($Name, $Space, $Bytes)
}

function Read-WinhostVolumeFiles {
    param([string]$Root)
    # Returns path, size and SHA-256 of each file. A file that is open exclusively has neither size nor hash.
    Import-WinhostNative
    foreach ($name in @([WinhostNative]::Files($Root))) {
        $length = [long]0
        try {
            $hash = [WinhostNative]::Hash("$Root$name", [ref]$length)
        }
        catch [System.ComponentModel.Win32Exception] {
            $hash = $null
            $length = $null
        }
        @{ path = $name; size = $length; sha256 = $hash }
    }
}

function Copy-WinhostVolumeFile {
    param([string]$Source, [string]$Target)
    # Copies a file; an existing file is replaced.
    Import-WinhostNative
    try {
        [WinhostNative]::Copy($Source, $Target)
    }
    catch [System.ComponentModel.Win32Exception] {
        $number = $_.Exception.GetBaseException().NativeErrorCode
        if ($number -eq 112) {
            Stop-Winhost 'Winhost.NoSpace' 'LimitsExceeded' "There is no room for $Target."
        }
        if ($number -eq 223) {
            Stop-Winhost 'Winhost.TooLarge' 'LimitsExceeded' "$Source has 4 GiB or more, which FAT32 cannot hold."
        }
        throw
    }
}

function Remove-WinhostVolumeFile {
    param([string]$Path)
    Import-WinhostNative
    [WinhostNative]::Delete($Path)
}

function Read-WinhostVolumeNames {
    param([string]$Root)
    Import-WinhostNative
    foreach ($name in @([WinhostNative]::Files($Root))) {
        $name
    }
}

function Read-WinhostVolumeHash {
    param([string]$Path)
    # Returns the SHA-256 of a file, or nothing if there is no such file.
    Import-WinhostNative
    $length = [long]0
    try {
        [WinhostNative]::Hash($Path, [ref]$length)
    }
    catch [System.ComponentModel.Win32Exception] {
        # The file, its folder or the file system does not exist.
        if (@(2, 3, 1005) -notcontains $_.Exception.GetBaseException().NativeErrorCode) {
            throw
        }
    }
}

function Add-WinhostVolumeFolder {
    param([string]$Path)
    # Creates the folders of a file. The name of its volume ends with a brace and a backslash.
    Import-WinhostNative
    $root = $Path.Substring(0, $Path.IndexOf('}\') + 2)
    [WinhostNative]::Folders($root, $Path.Substring($root.Length))
}

function Reset-WinhostVolume {
    param([string]$Root)
    # Dismounts the volume: Windows flushes it, closes open files, and mounts it again at its next use.
    Import-WinhostNative
    [WinhostNative]::Dismount($Root)
}

function Test-WinhostReadOnlyVolume {
    param([string]$Root)
    Import-WinhostNative
    [WinhostNative]::IsReadOnly($Root)
}
