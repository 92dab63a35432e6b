"""Dense reference networks, one file per family, each with a width and an explicit normalisation policy."""
