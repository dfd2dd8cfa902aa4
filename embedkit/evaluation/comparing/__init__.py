"""Runs compared with each other and with published results."""
