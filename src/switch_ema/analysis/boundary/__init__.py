"""Decision boundaries in the plane: measures, summary, figure."""
