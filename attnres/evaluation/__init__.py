"""Scores of saved models on tasks: suites, intervals, and what one model has over another."""
