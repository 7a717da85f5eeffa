"""The one engine for findings: a condition language, rows of catalogues, the runner of rules, and what they find."""
