"""From values to paired differences and verdicts."""
