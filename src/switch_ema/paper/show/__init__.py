"""The paper's tables and figures, drawn from stored runs."""
