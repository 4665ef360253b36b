"""The commands, one file each: its options (``add_arguments``) and what it does (``run``)."""
