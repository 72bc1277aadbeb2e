"""Small tasks that train in seconds."""
