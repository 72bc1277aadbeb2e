"""One file per method, and the slow reference beside them."""
