"""Encoders of texts for mteb: cached, truncated, in a context, on all ranks."""
