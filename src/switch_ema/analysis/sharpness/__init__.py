"""How fast the loss rises around the weights: curvature, spectrum, figure."""
