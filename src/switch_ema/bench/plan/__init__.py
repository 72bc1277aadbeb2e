"""From a configuration to cells, the trainings that can run apart."""
