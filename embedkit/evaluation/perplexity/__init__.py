"""Pseudo-perplexity of masked language models against text length."""
