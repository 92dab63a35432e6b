"""From a budget to a size: the largest ratio that fits, and a rank for every layer."""
