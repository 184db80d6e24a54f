"""From a base in float32 to what is served, a step at a time."""
