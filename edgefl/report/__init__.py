"""What a run and a cost profile look like to people: tables for the terminal, files for spreadsheets, one HTML page per run."""
