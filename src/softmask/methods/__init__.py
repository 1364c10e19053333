"""One file a method; the file's name, with `-` for `_`, is the method's."""
