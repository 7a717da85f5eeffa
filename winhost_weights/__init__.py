"""Packed weights: safetensors files whose 16-bit tensors are compressed by nvCOMP, and a vLLM loader for them.

The loader runs beside vLLM and is not a part of winhost: it imports nothing of it, and only what the engine has.
"""
