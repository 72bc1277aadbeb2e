"""Video prediction: the next frames of a clip."""
