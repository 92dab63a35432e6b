"""Reports on runs and costs: tables for the terminal and for spreadsheets, charts, and self-contained HTML pages."""
