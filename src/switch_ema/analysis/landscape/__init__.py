"""Loss landscapes: directions, evaluation, surfaces, figure."""
