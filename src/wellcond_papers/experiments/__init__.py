"""The papers' experiments, one file each: models and data in; rows, pictures and JSON files out."""
