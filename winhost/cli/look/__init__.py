"""Look at hosts and judge them: detect, assess, report, diff, facts, explain."""
