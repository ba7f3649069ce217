"""Makes the cases that the shipped urgency model is trained on; not part of the wheel."""
