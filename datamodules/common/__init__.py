"""Shared by all packages: errors, named random streams, checks of arguments."""
