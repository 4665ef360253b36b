"""What several methods are built from."""
