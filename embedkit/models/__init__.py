"""Encoders and what surrounds them.

Attention, pooling, loading, export. Imports recipe/ downward.
"""
