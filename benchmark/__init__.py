"""The federation loop, its engines, records, tables and command line."""
