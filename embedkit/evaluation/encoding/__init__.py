"""Encoders as mteb asks for them: cached, truncated, in context, over all ranks."""
