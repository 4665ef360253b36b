"""One correct method, and variants with one fault each that the contract must refuse."""
