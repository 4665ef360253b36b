"""Who holds which images, and who takes part in a round."""
