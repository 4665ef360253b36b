"""What every method owes to the framework, as checks that any package can run over its own methods.

``checks`` is the way in. ``runs``, ``steps``, ``isolation`` and ``devices`` hold the checks, ``federations`` what they
run on, ``emulated`` a device for machines that have none,
``reference`` the run that they compare with; ``attributes`` finds what a method keeps beside its registered tensors.
"""
