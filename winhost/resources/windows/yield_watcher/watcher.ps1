# Notifies the gateway when a desktop user needs the GPUs that models in WSL use. A scheduled task runs this script as that
# user. It only observes the desktop and sends `yield` or `resume`, with a key that permits nothing else.
#
# The files settings.json and `key` are in the same folder. It needs only Windows PowerShell 5.1.
$script:WinhostWatcherScript = {
    Set-StrictMode -Version 3.0
    $ErrorActionPreference = 'Stop'

    $source = @'
    using System;
    using System.Collections.Generic;
    using System.Diagnostics;
    using System.IO;
    using System.Net;
    using System.Runtime.InteropServices;
    using System.Text;

    public static class WinhostWatcher
    {
        // Seconds until a yield expires unless it is renewed, and seconds after the last need until the models resume.
        private const int LeaseSeconds = 30;
        private const int CalmSeconds = 60;
        private const int TimeoutMilliseconds = 5000;

        private static long lastWanted = -1;

        [DllImport("shell32.dll")]
        private static extern int SHQueryUserNotificationState(out int state);

        // 1: locked, a screen saver, or another user is active; 2, 3, 4: full screen, or a presentation; 0: unknown.
        public static int NotificationState()
        {
            int state;
            return SHQueryUserNotificationState(out state) == 0 ? state : 0;
        }

        // Tests whether a program, as game.exe, runs under any user.
        public static bool Runs(string[] programs)
        {
            HashSet<string> wanted = new HashSet<string>(programs, StringComparer.OrdinalIgnoreCase);
            bool found = false;
            foreach (Process process in Process.GetProcesses())
            {
                using (process)
                {
                    try
                    {
                        found = found || wanted.Contains(process.ProcessName + ".exe");
                    }
                    catch (InvalidOperationException)
                    {
                        // The process has just ended.
                        continue;
                    }
                }
            }
            return found;
        }

        public static bool Wants(int state, bool fullScreen, bool unlocked)
        {
            return (fullScreen && state >= 2 && state <= 4) || (unlocked && state > 1);
        }

        // Returns what to send now: yield while the GPUs are needed and for a while after, then resume once, then nothing.
        public static string Next(bool wanted, long second)
        {
            if (wanted)
            {
                lastWanted = second;
            }
            if (lastWanted < 0)
            {
                return "";
            }
            if (second - lastWanted < CalmSeconds)
            {
                return "yield";
            }
            lastWanted = -1;
            return "resume";
        }

        // The key may be sent to this machine, or with TLS to any; never through a proxy, and never after a redirection.
        public static void Check(string url)
        {
            Uri uri = new Uri(url);
            if (uri.Scheme != "https" && !(uri.Scheme == "http" && uri.IsLoopback))
            {
                throw new ArgumentException("url: http is for this machine alone; elsewhere it is https");
            }
        }

        // Sends the state. Returns an empty text, or why that failed.
        public static string Tell(string url, string key, string state)
        {
            Check(url);
            string body = "{\"state\": \"" + state + "\"" + (state == "yield" ? ", \"seconds\": " + LeaseSeconds : "") + "}";
            byte[] bytes = Encoding.ASCII.GetBytes(body);
            try
            {
                HttpWebRequest request = (HttpWebRequest)WebRequest.Create(url.TrimEnd('/') + "/winhost/yield");
                request.Method = "POST";
                request.ContentType = "application/json";
                request.Proxy = null;
                request.AllowAutoRedirect = false;
                request.KeepAlive = false;
                request.Timeout = TimeoutMilliseconds;
                request.ReadWriteTimeout = TimeoutMilliseconds;
                request.ServicePoint.Expect100Continue = false;
                request.Headers["Authorization"] = "Bearer " + key;
                request.ContentLength = bytes.Length;
                using (Stream stream = request.GetRequestStream())
                {
                    stream.Write(bytes, 0, bytes.Length);
                }
                using (HttpWebResponse response = (HttpWebResponse)request.GetResponse())
                {
                    return response.StatusCode == HttpStatusCode.OK ? "" : "status " + (int)response.StatusCode;
                }
            }
            catch (WebException error)
            {
                HttpWebResponse response = error.Response as HttpWebResponse;
                return response == null ? error.Status.ToString() : "status " + (int)response.StatusCode;
            }
            catch (IOException error)
            {
                return error.GetType().Name;
            }
        }
    }
'@

    function Read-WinhostWatcherSettings {
        # Reads the settings; those that were not set are null.
        $text = [System.IO.File]::ReadAllText("$PSScriptRoot\settings.json")
        ConvertFrom-Json -InputObject $text -ErrorAction Stop
    }

    function Measure-WinhostGpuMemory {
        # Returns the bytes of GPU memory that Windows programs use. WSL's memory is that of the process vmmem, and excluded.
        $names = @{}
        foreach ($process in [System.Diagnostics.Process]::GetProcesses()) {
            $names["$($process.Id)"] = $process.ProcessName
            $process.Dispose()
        }
        $bytes = 0
        $class = 'Win32_PerfFormattedData_GPUPerformanceCounters_GPUProcessMemory'
        foreach ($each in @(Get-CimInstance -ClassName $class -ErrorAction Stop)) {
            if ("$($each.Name)" -match '^pid_(\d+)_' -and "$($names[$Matches[1]])" -notmatch '^vmmem|^vmwp$') {
                $bytes += $each.LocalUsage
            }
        }
        $bytes
    }

    function Write-WinhostWatcherStatus {
        param([string]$Said, [string]$Why)
        # Writes the last state as one line. This account can write to the file that winhost created, but not remove it.
        $line = [System.Text.Encoding]::UTF8.GetBytes("$([System.DateTime]::UtcNow.ToString('s'))Z $Said $Why`r`n")
        $file = [System.IO.File]::Open("$PSScriptRoot\last.txt", 'OpenOrCreate', 'Write', 'Read')
        $file.SetLength(0)
        $file.Write($line, 0, $line.Length)
        $file.Dispose()
    }

    Add-Type -TypeDefinition $source -ErrorAction Stop
    $settings = Read-WinhostWatcherSettings
    $key = [System.IO.File]::ReadAllText("$PSScriptRoot\key").Trim()
    [WinhostWatcher]::Check($settings.url)
    [System.Net.ServicePointManager]::SecurityProtocol = [System.Net.ServicePointManager]::SecurityProtocol -bor 'Tls12'
    $clock = [System.Diagnostics.Stopwatch]::StartNew()
    $before = ''
    while ($true) {
        $why = ''
        $wants = [WinhostWatcher]::Wants([WinhostWatcher]::NotificationState(), $settings.full_screen, $settings.unlocked)
        $wants = $wants -or [WinhostWatcher]::Runs([string[]]@($settings.programs))
        if (-not $wants -and $null -ne $settings.gpu_memory) {
            try {
                $wants = (Measure-WinhostGpuMemory) -ge $settings.gpu_memory
            }
            catch {
                $why = "GPU memory: $($_.Exception.Message)"
            }
        }
        $say = [WinhostWatcher]::Next($wants, [long]$clock.Elapsed.TotalSeconds)
        if ($say -ne '') {
            $why = [WinhostWatcher]::Tell($settings.url, $key, $say)
        }
        if ("$say $why" -ne $before) {
            Write-WinhostWatcherStatus $say $why
            $before = "$say $why"
        }
        Start-Sleep -Seconds 5 -ErrorAction Stop
    }
}
