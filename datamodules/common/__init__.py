"""What every package needs: errors, named random streams, checked arguments."""
