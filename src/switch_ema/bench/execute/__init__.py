"""Trains cells: in this process, in local workers, or on a Ray or Slurm cluster."""
