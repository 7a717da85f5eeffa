"""HTTP requests to servers on the internet, and local servers that sleep while idle."""
