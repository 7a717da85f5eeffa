"""The engine for findings: the condition language, catalogues of rows, observations of rules, and the runner."""
