"""A problem, its optimizer and findings in; remedies tried on copies and compared with the untreated network."""
