"""Files that outlive a process: atomic writes, verified blocks, cache, hashes."""
