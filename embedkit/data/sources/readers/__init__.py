"""Readers of formats that ``datasets`` does not know."""
