"""One file per format: each reader yields bounded blocks of rows that know their place in the file."""
