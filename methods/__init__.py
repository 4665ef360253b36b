"""Federated semi-supervised learning methods: one file, one class each."""
