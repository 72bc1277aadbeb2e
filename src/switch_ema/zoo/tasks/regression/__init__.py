"""Tasks that predict numbers."""
