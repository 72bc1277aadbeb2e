"""The bench: does averaging help on this task, and by how much?"""
