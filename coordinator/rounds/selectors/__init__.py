"""Client selectors, one per file, and their registry."""
