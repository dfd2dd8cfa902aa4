"""Files that outlive a process: verified blocks, cache, hashes. Imports the root modules."""
