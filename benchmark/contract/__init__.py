"""What every method owes to the framework, as checks that any package can run over its own methods.

``checks`` is the way in. ``runs``, ``isolation``, ``hidden`` and ``watching`` hold the checks, ``federations`` what
they run on and compare with; ``attributes`` finds what a method keeps beside its registered tensors.
"""
