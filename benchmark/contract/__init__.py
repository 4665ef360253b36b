"""What every method owes to the framework, as checks that any package can run over its own methods.

``checks`` is the way in. ``isolation`` holds the checks of what a method reads, keeps and changes, ``runs`` those of
numbers; ``federations`` has what they run on and compare with, ``attributes`` what a method keeps beside its registered
tensors.
"""
