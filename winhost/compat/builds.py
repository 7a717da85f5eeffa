"""Windows build numbers in which something begins. A build dates a Windows; only its edition says which kind it is."""

SERVER_2016 = 14393
SERVER_2019 = 17763
WINDOWS_10_21H2 = 19044
SERVER_2022 = 20348
WINDOWS_11 = 22000
WINDOWS_11_22H2 = 22621
SERVER_2025 = 26100
