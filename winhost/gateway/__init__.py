"""The gateway before vLLM engines. It is copied to the Linux that serves and runs there, with the standard library and
aiohttp alone: Python from 3.10, aiohttp from 3.8.4.
"""
