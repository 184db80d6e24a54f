"""Many models against one base, in one process."""
