"""One file per method; the name of the method is that of the file, with `-` for `_`."""
