"""Manifests: sections that say where a source lies, at which revision, and its columns."""
