"""Reports of a comparison: terminal output and a single HTML page."""
