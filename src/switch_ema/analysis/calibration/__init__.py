"""How far a classifier's confidence can be trusted, and its figure."""
