"""Tasks of the bench: registry.py names them, loading.py makes them."""
