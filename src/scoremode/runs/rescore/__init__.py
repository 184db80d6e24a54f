"""Second runs: some windows scored again under other options, and compared with the first scores."""
