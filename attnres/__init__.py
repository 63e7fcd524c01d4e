"""Attention over depth in place of the residual sum (arXiv:2603.15031)."""
