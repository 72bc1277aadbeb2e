"""Averaging under DDP and FSDP2."""
