"""What the five papers report, run again with edgefl: a module per table, with its runs and how it is rendered from their figures."""
