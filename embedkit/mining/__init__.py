"""Hard negatives for a source of pairs. Imports data/, models/ and below."""
