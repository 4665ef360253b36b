"""What every method owes to the framework, as checks that any package can run over its own methods.

``checks`` is the way in. ``runs``, ``irrelevant``, ``steps`` and ``isolation`` hold the checks, ``federations`` what
they run on, ``reference`` the run that they compare with; ``attributes`` finds what a method keeps beside its
registered tensors.
"""
