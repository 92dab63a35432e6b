"""The codecs, one file each, which pack the values of a tensor."""
