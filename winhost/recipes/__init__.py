"""A person's own recipe for vLLM: read in whatever form it is pasted, held against what is known, mended in place."""
