"""Object detection and instance segmentation: Tables 6 and 7 of the paper."""
