"""What runs on the target: standard library only, Python 3.8 or newer. Here it is read as text and never imported."""
