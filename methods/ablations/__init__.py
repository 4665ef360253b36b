"""Variants of methods for ablations of their papers, named by dotted path; ``list methods`` does not offer them."""
