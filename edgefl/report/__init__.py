"""What people see of a run and of a cost profile: tables for the terminal and spreadsheets, one HTML page per run."""
