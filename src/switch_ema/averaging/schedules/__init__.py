"""When to average and when to switch: decay schedules and intervals."""
