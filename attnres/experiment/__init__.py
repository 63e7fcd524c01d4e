"""A study: one question, arms that differ by their residual, runs, rows and what they say."""
