"""What a manifest may say of a source: where it lies, its revision, its columns."""
