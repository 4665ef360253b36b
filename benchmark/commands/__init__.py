"""The commands, one file each: its options (``add_arguments``) and what it does (``run``).

``run`` returns the exit code where a command that has not failed may end with another one than 0.
"""
