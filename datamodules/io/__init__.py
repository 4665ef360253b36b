"""Reading data sets from files, and encoding texts."""
