"""Export formats that need a package of their own."""
