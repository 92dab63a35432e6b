"""Dense reference networks, one file per family. Each has a width and an explicit normalisation policy."""
