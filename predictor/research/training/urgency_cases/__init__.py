"""Cases of every level of urgency, written for training: phrases in text files, and their forms."""
