"""Static pages generated from records: a leaderboard, a page per paper, and optionally a page per run."""
