"""Which tensors of a model are averaged: slots, names, and what has changed."""
