"""Image classification from scratch."""
