"""embedkit: from raw text to a measured embedding model."""
