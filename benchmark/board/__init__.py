"""The rules of leaderboards as code (RULES.md): tuning of rates, admission of settings, and entering a method."""
