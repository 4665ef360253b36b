"""Static pages made from records: a leaderboard, a page per paper, and a page per run if asked for."""
