"""Image generation: diffusion models."""
