"""What every method owes to the framework, as checks that any package can run over its own methods.

``checks`` is the way in. ``runs`` and ``steps`` hold the checks, ``federations`` what they run on.
"""
