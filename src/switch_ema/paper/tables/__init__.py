"""The paper's tables and ablations, as data."""
