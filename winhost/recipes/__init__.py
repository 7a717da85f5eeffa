"""Lints a user's own recipe for an inference engine: reads it in any form, checks it, and mends it in place."""
