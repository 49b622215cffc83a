"""Still pictures, drawn with matplotlib."""
