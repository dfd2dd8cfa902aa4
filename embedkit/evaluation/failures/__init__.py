"""Queries that one of two evaluations answers better: which they are, and what they look like."""
