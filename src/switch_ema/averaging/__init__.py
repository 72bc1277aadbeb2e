"""The averaging methods; they need torch alone."""
