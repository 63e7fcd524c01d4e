"""Prompts read in chunks, and what their sources take."""

from attnres.inference.memory import SourceMemory
from attnres.inference.prefill import prefill

__all__ = ["SourceMemory", "prefill"]
