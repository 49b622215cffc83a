"""A problem, its optimizer and findings in; every remedy tried on copies beside the untreated network, out."""
