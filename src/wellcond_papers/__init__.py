"""The five papers reproduced with wellcond: models and data in; rows, claims, pictures and the book out."""
