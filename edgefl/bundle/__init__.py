"""Bundles: the folders that devices receive. Writing, verifying in a sandbox, signing, quantizing."""
