"""Variants of methods for ablations, named by dotted path; ``list methods`` leaves them out."""
