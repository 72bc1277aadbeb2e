"""Many seeds trained as one model."""
