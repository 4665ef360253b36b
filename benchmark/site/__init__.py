"""Static pages made from records: a leaderboard, a page per paper, a page per run."""
