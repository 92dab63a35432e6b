"""The codecs, one file each: how the values of a tensor travel."""
