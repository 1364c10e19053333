"""Reports: from tables to text, files, figures and HTML."""
